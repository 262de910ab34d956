"""Where a module, autocast and containers come in: generated wrapper and reference checker give one verdict."""

import contextlib
from typing import TypedDict

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jaxtyping import Float, Float16, Float32, Int, Num, Shaped
from torch import Tensor, nn

import dtypeguard
from dtypeguard import DtypeGuardError, enforce, guard
from dtypeguard._core.check.reference import check, check_result

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
dtypes = st.sampled_from([F16, BF16, F32, F32, F32, F64, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2])
floats = st.sampled_from([F16, BF16, F32, F32, F64])
devices = st.sampled_from(["cpu", "cpu", "cpu", "meta"])


@st.composite
def tensors(draw):
    shape = draw(st.sampled_from([(2, 3), (2, 3), (2, 3), (), (3,), (1, 3)]))
    return torch.empty(shape, dtype=draw(dtypes), device=draw(devices))


leaves = st.one_of(tensors(), tensors(), st.sampled_from([None, 1, 2.5, "text"]))
values = st.one_of(
    tensors(),
    st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        ),
        max_leaves=5,
    ),
)


class Plain(nn.Module):
    def forward(self, x, *rest, extra=None, **more):
        return None


class Annotated(nn.Module):
    def forward(self, x: Float[Tensor, "b n"], y: Float32[Tensor, "b n"] | None = None, z: Num[Tensor, "..."] = None):
        return None


class Enforced(nn.Module):
    @enforce(mode="strict")
    def forward(
        self, x: Shaped[Tensor, "b n"], y: Float16[Tensor, "*s"] | None = None, z: list[Float[Tensor, "n"]] = ()
    ):
        return None


class Row(TypedDict):
    row: Float[Tensor, "n"]


class Either(nn.Module):
    """Unions that are told apart by class and rank, and what only the reference can check, beside it."""

    @enforce(mode="strict")
    def forward(
        self,
        x: Float16[Tensor, "b n"] | Float[Tensor, "b n"] | Int[Tensor, "b n"],
        y: Float[Tensor, "n"] | Float32[Tensor, "b n"] | int | str | None = None,
        z: Float[Tensor, "k"] | list[Float[Tensor, "n"]] | Row = (),
        w: Float[Tensor, "b k"] | None = None,
    ) -> Float[Tensor, "b n"] | list[Float[Tensor, "k"]] | None:
        return y


@st.composite
def models(draw, kinds):
    model = draw(st.sampled_from(kinds))()
    for n in range(draw(st.integers(0, 3))):
        parameter = torch.empty((2,), dtype=draw(floats), device=draw(devices))
        child = nn.Module()
        child.register_parameter("weight", nn.Parameter(parameter, requires_grad=False))
        setattr(model, f"child{n}", child)
    return model


matrices = st.builds(lambda dtype, device: torch.empty((2, 3), dtype=dtype, device=device), floats, devices)
rows = st.builds(lambda dtype, device: torch.empty((3,), dtype=dtype, device=device), floats, devices)
mostly_none = st.one_of(st.none(), st.none(), matrices, leaves)
regions = st.sampled_from([None, None, BF16, F16])


def verdicts(model, contract, arguments, region):
    """What a strict call says, and what the reference says of the same arguments."""
    context = contextlib.nullcontext() if region is None else torch.autocast("cpu", dtype=region)
    with context:
        found = check(contract, (model, *arguments)).violations
        try:
            model.forward(*arguments)
        except DtypeGuardError:
            return False, not found
        return True, not found


relaxed = settings(
    max_examples=2 * settings.default.max_examples, deadline=None, suppress_health_check=list(HealthCheck)
)
options = st.fixed_dictionaries(
    {},
    optional={
        "depth": st.sampled_from(["auto", "boundary"]),
        "dtype": floats,
        "device": st.sampled_from(["cpu", "meta"]),
        "autocast": st.sampled_from(["follow", "ignore"]),
        "move_args": st.just(("x",)),
    },
)


@relaxed
@given(models([Plain]), options, values, values, regions)
def test_a_guard_of_an_unannotated_forward(model, given_options, x, extra, region):
    guard(model, mode="strict", **given_options)
    contract = type(model).forward.__dtypeguard__[1]
    context = contextlib.nullcontext() if region is None else torch.autocast("cpu", dtype=region)
    with context:
        found = check(contract, (model, x, (extra,), extra, {})).violations
        try:
            model.forward(x, extra, extra=extra)
        except DtypeGuardError:
            assert found
        else:
            assert not found


@relaxed
@given(models([Annotated, Enforced]), options, st.one_of(matrices, matrices, leaves), mostly_none, regions)
def test_a_guard_of_an_annotated_forward(model, given_options, x, y, region):
    guard(model, mode="strict", **given_options)
    contract = type(model).forward.__dtypeguard__[1]
    fast, reference = verdicts(model, contract, (x, y, contract.params[3].default), region)
    assert fast == reference


@relaxed
@given(models([Enforced]), matrices, mostly_none, st.lists(rows, max_size=2), regions)
def test_an_enforced_method(model, x, y, z, region):
    fast, reference = verdicts(model, type(model).forward.__dtypeguard__[1], (x, y, z), region)
    assert fast == reference


short = st.builds(lambda dtype: torch.empty((2,), dtype=dtype), floats)
things = st.one_of(matrices, rows, short, st.lists(rows, max_size=2), rows.map(lambda row: {"row": row}), leaves)


@relaxed
@given(models([Either]), st.one_of(matrices, tensors()), things, things, mostly_none, st.booleans(), regions)
def test_an_enforced_method_with_unions(model, x, y, z, w, guarded, region):
    """The reference is asked for single arguments too, and finds the same axes bound."""
    if guarded:
        guard(model, mode="strict")
    contract = type(model).forward.__dtypeguard__[1]
    context = contextlib.nullcontext() if region is None else torch.autocast("cpu", dtype=region)
    with context:
        call = check(contract, (model, x, y, z, w))
        wrong = bool(call.violations or check_result(call, y).violations)
        try:
            model.forward(x, y, z, w)
        except DtypeGuardError:
            assert wrong
        else:
            assert not wrong


@relaxed
@given(models([Plain]), values, regions)
def test_what_a_guard_lets_pass_in_strict_mode_it_leaves_alone_in_lenient_mode(model, x, region):
    context = contextlib.nullcontext() if region is None else torch.autocast("cpu", dtype=region)
    with context:
        try:
            guard(model, mode="strict").forward(x)
        except DtypeGuardError:
            return
        guard(model, mode="lenient").forward(x)
    assert dtypeguard.casts() == []
