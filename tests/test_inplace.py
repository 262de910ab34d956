"""A cast must not change the program: in-place writes, gradients, strides, and the caller's own tensors."""

import asyncio
import contextlib
import warnings

import pytest
import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from dtypeguard import (
    CastError,
    CastWarning,
    DtypeError,
    DtypeGuardWarning,
    InplaceOnCastWarning,
    ShapeError,
    casts,
    enforce,
    reset_casts,
)
from dtypeguard._core.check import verify as _verify

Row = Float32[Tensor, "n"]


def f32(n=3):
    return torch.arange(n, dtype=torch.float32)


def f64(n=3):
    return torch.arange(n, dtype=torch.float64)


@contextlib.contextmanager
def warns(*kinds):
    """Exactly these warnings, in this order."""
    with pytest.warns(DtypeGuardWarning) as said:
        yield said
    assert [w.category for w in said] == list(kinds)


silent = pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")


# ---------------------------------------------------------------- the body writes


WRITES = {
    "add_": lambda x: x.add_(1),
    "an item": lambda x: x.__setitem__(0, 7),
    "a view": lambda x: x[1:].zero_(),
    "detached": lambda x: x.detach().mul_(2),
    "out=": lambda x: torch.add(x, 1, out=x),
    "copy_": lambda x: x.copy_(torch.ones(3)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writing_to_a_cast_copy_warns_once_for_each_line_and_to_the_callers_own_does_not(write):
    @enforce
    def f(x: Row):
        write(x)
        return x

    def call(x):
        return f(x)

    x, right, expected = f64(), f32(), f32()
    write(expected)
    assert torch.equal(call(right), expected)
    assert torch.equal(right, expected)
    for _ in range(2):
        with warns(CastWarning, InplaceOnCastWarning) as said:
            got = call(x)
        text = str(said[1].message)
        for word in ("f changed in place `x`", "float64", "float32"):
            assert word in text
        assert said[1].filename == __file__
        assert torch.equal(x, f64())
        assert torch.equal(got, expected)
        call(x)
        reset_casts()
    with torch.no_grad(), warns(CastWarning, InplaceOnCastWarning):
        call(f64().requires_grad_())


def test_reading_warns_of_nothing():
    @enforce
    def f(x: Row):
        return (x + 1).add_(1), x.clone().zero_(), x.detach(), x.view(-1)

    with warns(CastWarning):
        f(f64())


def test_a_body_that_writes_only_later_is_noticed_later():
    """By then the repair is a habit, and takes a shorter way."""

    @enforce
    def f(x: Row, write: bool = False, ask: bool = False):
        if write:
            x.add_(1)
        if ask:
            x.requires_grad_()

    def call(**options):
        x = f64()
        f(x, **options)
        assert torch.equal(x, f64())
        assert not x.requires_grad

    with pytest.warns(CastWarning):
        call()
    call()
    call()
    with pytest.warns(InplaceOnCastWarning, match="in place"):
        call(write=True)
    with pytest.warns(InplaceOnCastWarning, match="requires_grad_"):
        call(ask=True)


def test_writing_to_an_element_of_a_container_names_it():
    @enforce
    def f(x: list[Row], **more: Row):
        x[1].add_(1)
        more["y"].zero_()

    wrong = f64()
    with warns(CastWarning, CastWarning, InplaceOnCastWarning, InplaceOnCastWarning) as said:
        f([f32(), wrong], y=f64())
    assert "`x[1]`" in str(said[2].message)
    assert "`more['y']`" in str(said[3].message)
    assert torch.equal(wrong, f64())


@pytest.mark.parametrize("kind", ["coroutine", "generator", "async generator", "method"])
def test_writing_is_noticed_in_every_kind_of_body(kind):
    @enforce
    async def coroutine(x: Row):
        x.add_(1)

    @enforce
    def generator(x: Row):
        yield 3
        x.add_(1)

    @enforce
    async def async_generator(x: Row):
        yield 3
        x.add_(1)

    class Net(nn.Module):
        @enforce
        def forward(self, x: Row):
            x.add_(1)

    async def drain(x):
        return [item async for item in async_generator(x)]

    run = {
        "coroutine": lambda x: asyncio.run(coroutine(x)),
        "generator": lambda x: list(generator(x)),
        "async generator": lambda x: asyncio.run(drain(x)),
        "method": Net(),
    }[kind]
    x = f64()
    with warns(CastWarning, InplaceOnCastWarning):
        run(x)
    assert torch.equal(x, f64())


def test_inference_tensors_have_no_version_so_nothing_is_said_of_them():
    @enforce
    def f(x: Row):
        return x.add_(1)

    with torch.inference_mode():
        x = f64()
        with warns(CastWarning):
            f(x)
        assert torch.equal(x, f64())
    with warns(CastWarning, InplaceOnCastWarning):  # outside, the copy of an inference tensor is a plain one
        assert torch.equal(f(x), f32() + 1)


# ---------------------------------------------------------------- mutates and out


@pytest.mark.parametrize("names", [("x",), ["x", "y"]])
def test_what_is_declared_as_written_to_is_checked_and_never_cast(names):
    @enforce(mutates=names)
    def f(x: Row, y: Row):
        x.add_(y)

    x, wrong = f32(), f64()
    f(x, f32())
    assert torch.equal(x, 2 * f32())
    with pytest.raises(CastError, match="`x` is float64"):
        f(wrong, f32())
    with pytest.raises(ShapeError):
        f(f32(2), f32(3))
    assert torch.equal(wrong, f64())


def test_out_is_written_to_without_saying_so():
    @enforce
    def f(x: Row, *, out: Row = None) -> Row:
        return torch.add(x, 1, out=out)

    out = torch.zeros(3)
    with pytest.warns(CastWarning, match="`x`"):
        assert f(f64(), out=out) is out
    assert torch.equal(out, f32() + 1)
    wrong = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(CastError, match="`out` is float64"):
        f(f32(), out=wrong)
    with pytest.raises(DtypeError):
        enforce(mode="strict")(f.__wrapped__)(f32(), out=wrong)
    assert f(f32()).dtype is torch.float32


def test_a_list_that_is_written_to_is_checked_and_never_rebuilt():
    @enforce(mutates=("xs",))
    def f(xs: list[Row]):
        for x in xs:
            x.add_(1)

    xs = [f32(), f32()]
    f(xs)
    assert torch.equal(xs[1], f32() + 1)
    with pytest.raises(CastError, match=r"`xs\[1\]`"):
        f([f32(), f64()])


def test_an_argument_that_is_also_written_to_under_another_name_is_not_cast_there():
    """One tensor for both: casting `x` while writing to `acc` would part them."""

    @enforce(mutates=("acc",))
    def f(acc: Float[Tensor, "n"], x: Row):
        acc.add_(x)

    x = f64()
    with pytest.warns(CastWarning):
        f(x, x)
    assert torch.equal(x, 2 * f64())


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gradients_of_every_order_come_back_in_the_callers_dtype(dtype):
    @enforce
    def f(x: Row, y: Row):
        return (x * x * y).sum()

    def call(x):
        y = f(x, x)  # which stands there twice
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return first.dtype, second.dtype, first.tolist(), second.tolist()

    with pytest.warns(CastWarning):
        assert call(f64().to(dtype).requires_grad_()) == (dtype, dtype, [0.0, 3.0, 12.0], [0.0, 6.0, 12.0])
    for _ in range(2):  # the repair is known
        assert call(nn.Parameter(f64().to(dtype))) == (dtype, dtype, [0.0, 3.0, 12.0], [0.0, 6.0, 12.0])


def test_a_cast_of_a_result_is_differentiable():
    @enforce
    def f(x: Float[Tensor, "n"]) -> Row:
        return x * 2

    x = f64().requires_grad_()
    with pytest.warns(CastWarning):
        f(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0, dtype=torch.float64))


# ---------------------------------------------------------------- strides and memory

EXPANDED = {
    "mask": torch.zeros(1, 1, 4, 4, dtype=torch.float64).expand(8, 16, 4, 4),
    "scalar": torch.zeros((), dtype=torch.float64).expand(100, 100),
    "last axis": torch.zeros(5, 1, dtype=torch.float64).expand(5, 1000),
    "middle axis": torch.zeros(5, 1, 7, dtype=torch.float64).expand(5, 100, 7),
    "of a slice": torch.zeros(1000, 4, dtype=torch.float64)[:1].expand(50, 4),
    "of a transpose": torch.zeros(4, 5, dtype=torch.float64).t()[None].expand(50, 5, 4),
    "of a parameter": nn.Parameter(torch.zeros(1, 4, dtype=torch.float64)).expand(50, 4),
}


@pytest.mark.parametrize("x", EXPANDED.values(), ids=EXPANDED.keys())
def test_a_cast_keeps_expanded_axes_and_costs_one_copy_of_what_they_show(x):
    @enforce
    def f(x: Float32[Tensor, "..."]):
        return x

    def call():
        return f(x)

    distinct = 1
    for size, stride in zip(x.shape, x.stride(), strict=True):
        distinct *= size if stride else 1
    with pytest.warns(CastWarning):
        first = call()
    for got in (first, call(), call()):
        assert got.dtype is torch.float32
        assert got.shape == x.shape
        assert [s == 0 for s in got.stride()] == [s == 0 for s in x.stride()]
        assert got.untyped_storage().nbytes() == 4 * distinct
    assert casts()[0].bytes == 3 * 4 * distinct


LAYOUTS = {
    "channels_last": lambda: torch.zeros(2, 3, 4, 5, dtype=torch.float64).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.zeros(4, 5, dtype=torch.float64).t(),
    "expanded": lambda: torch.zeros(4, 1, dtype=torch.float64).expand(4, 5),
    "a slice": lambda: torch.zeros(1_000_000, dtype=torch.float64)[:10],
    "a subclass": lambda: f64().as_subclass(Tagged),
    "sparse": lambda: torch.eye(3, dtype=torch.float64).to_sparse(),
    "sparse CSR": lambda: torch.eye(3, dtype=torch.float64).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([f64(2), f64(3)], layout=torch.jagged),
    "overlapping": lambda: torch.arange(5, dtype=torch.float64).as_strided((3, 3), (1, 1)),
    "empty": lambda: torch.zeros(0, 3, dtype=torch.float64),
    "meta": lambda: torch.zeros(3, 3, dtype=torch.float64, device="meta"),
    "parameter": lambda: nn.Parameter(torch.eye(3, dtype=torch.float64)),
    "inference": lambda: inference(torch.eye(3, dtype=torch.float64)),
    "conjugate": lambda: torch.eye(3, dtype=torch.complex128).conj().imag,
}


class Tagged(Tensor):
    pass


def inference(x):
    with torch.inference_mode():
        return x.clone()


@pytest.mark.parametrize("plain_before", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@silent
def test_tensors_of_every_layout_are_repaired_again_and_again(name, plain_before):
    @enforce
    def f(x: Float32[Tensor, "..."]):
        return x

    def call(x):
        return f(x)

    for _ in range(2 if plain_before else 0):
        call(torch.eye(3, dtype=torch.float64))
    for _ in range(3):
        x = LAYOUTS[name]()
        got = call(x)
        assert got.dtype is torch.float32
        assert x.dtype is torch.float64
        assert (got.layout, got.ndim) == (x.layout, x.ndim)
        if name in ("channels_last", "transposed"):
            assert got.stride() == x.stride()
        if name == "expanded":
            assert got.stride() == (1, 0)
        if name == "a slice":
            assert got.untyped_storage().nbytes() == 40
        assert (type(got) is Tagged) == (name == "a subclass")


# ---------------------------------------------------------------- what a repair may not lose


def test_a_narrowing_that_makes_a_finite_value_infinite_is_refused_before_the_body():
    ran = []

    @enforce
    def f(mask: Float[Tensor, "n"], x: Float32[Tensor, "n"]):
        ran.append(True)

    @enforce
    def g(x: Row):
        ran.append(True)

    big = torch.full((3,), torch.finfo(torch.float64).max, dtype=torch.float64)
    with pytest.raises(CastError, match="infinite") as caught:
        g(big)
    for word in ("clamp", "wider"):
        assert word in str(caught.value)
    assert "skip_args" not in str(caught.value)  # which `enforce` does not have
    with pytest.raises(CastError):
        g(big)
    assert not ran
    assert casts() == []


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_values_that_were_not_finite_before_are_no_loss(value):
    @enforce
    def f(x: Row):
        return x

    with pytest.warns(CastWarning):
        f(torch.full((3,), value, dtype=torch.float64))


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("verify", ["first", "always", "never"])
def test_when_a_narrowing_is_verified(verify, inside):
    @enforce(verify=verify)
    def f(x: Row):
        return x

    @enforce(verify=verify)
    def first(xs: list[Row]):
        return xs[0]

    def call(x):
        return first([x]) if inside else f(x)

    big = torch.full((3,), 1e300, dtype=torch.float64)
    for given in (f64(), f64(), big) if verify != "never" else (big, big):
        if given is big and verify == "always":
            with pytest.raises(CastError):
                call(big)
        else:
            with silence():
                got = call(given)
    assert verify == "always" or got.isinf().all()


@contextlib.contextmanager
def silence():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CastWarning)
        yield


class DTensor:
    """What stands for a part of a tensor; the real one needs other processes."""

    def __init__(self, part):
        self._local_tensor = part


class AsyncCollectiveTensor:
    def __init__(self, elem):
        self.elem = elem


@pytest.mark.parametrize("whole", [lambda x: x, DTensor, AsyncCollectiveTensor, lambda x: DTensor(DTensor(x))])
def test_of_a_tensor_across_processes_its_own_part_is_looked_at(whole):
    big, small = torch.full((3,), 1e300, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    assert _verify.narrowing(whole(big), whole(big.float())) == (None, True)
    assert _verify.narrowing(whole(small), whole(small.float())) == (0.0, False)
    assert _verify.narrowing(whole(small.float()), whole(small)) == (None, False)
    assert _verify.size(whole(small)) == 24


def test_a_pipeline_that_probes_its_stages_with_uninitialized_memory_is_not_refused():
    @enforce(verify="always")
    def f(x: Row):
        return x

    def _forward_metadata_inference(stage, x):  # of torch.distributed.pipelining
        return stage(x)

    big = torch.full((3,), 1e300, dtype=torch.float64)
    with pytest.warns(CastWarning):
        assert _forward_metadata_inference(f, big).isinf().all()
    with pytest.raises(CastError):
        f(big)


def test_the_error_of_a_narrowing_is_in_its_record():
    @enforce
    def f(x: Row):
        return x

    with pytest.warns(CastWarning):
        f(torch.tensor([1.0, 0.1], dtype=torch.float64))
    assert 0 < casts()[0].error < 1e-7
    reset_casts()
    with pytest.warns(CastWarning):
        f(f64())
    assert casts()[0].error == 0
