"""A cast must not change the program: in-place writes, gradients, strides, and the caller's own tensors."""

import asyncio
import contextlib

import pytest
import torch
from jaxtyping import Float, Float32, Int64
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


def adds(x):
    x.add_(1)


def assigns(x):
    x[0] = 7


def operates(x):
    x += 1


def writes_through_a_view(x):
    x[1:].zero_()


def writes_detached(x):
    x.detach().mul_(2)


def fills_out(x):
    torch.add(x, 1, out=x)


def copies(x):
    x.copy_(torch.ones(3))


WRITES = [adds, assigns, operates, writes_through_a_view, writes_detached, fills_out, copies]
every_write = pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)


@every_write
def test_writing_to_a_cast_copy_warns_and_the_callers_tensor_did_not_change(write):
    @enforce
    def f(x: Row):
        write(x)
        return x

    x = f64()
    with warns(CastWarning, InplaceOnCastWarning) as said:
        got = f(x)
    text = str(said[1].message)
    for word in ("f changed in place `x`", "float64", "float32"):
        assert word in text
    assert said[1].filename == __file__
    assert torch.equal(x, f64())
    assert not torch.equal(got, f32())


@every_write
def test_writing_to_an_argument_that_was_right_reaches_the_caller_without_a_word(write):
    @enforce
    def f(x: Row):
        write(x)

    x, expected = f32(), f32()
    write(expected)
    f(x)
    assert torch.equal(x, expected)


def test_asking_a_cast_copy_for_its_gradient_warns():
    @enforce
    def f(x: Row):
        x.requires_grad_()
        return x

    x = f64()
    with warns(CastWarning, InplaceOnCastWarning) as said:
        f(x)
    assert "requires_grad_" in str(said[1].message)
    assert not x.requires_grad


def test_reading_warns_of_nothing():
    @enforce
    def f(x: Row):
        return (x + 1).add_(1), x.clone().zero_(), x.detach(), x.view(-1)

    with warns(CastWarning):
        f(f64())


def test_writing_warns_once_for_each_line_until_reset():
    @enforce
    def f(x: Row):
        x.add_(1)

    def call():
        f(f64())

    with warns(CastWarning, InplaceOnCastWarning):
        call()
    call()
    reset_casts()
    with warns(CastWarning, InplaceOnCastWarning):
        call()


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
        x.add_(1)
        return x

    def call(x):
        return f(x)

    with torch.inference_mode():
        x = f64()
        with warns(CastWarning):
            assert torch.equal(call(x), f32() + 1)
        for _ in range(2):
            assert torch.equal(call(x), f32() + 1)
        assert torch.equal(x, f64())


def test_an_inference_tensor_is_repaired_outside_of_inference_mode():
    @enforce
    def f(x: Row):
        return x

    with torch.inference_mode():
        x = f64()
    with warns(CastWarning):
        assert f(x).dtype is torch.float32


def test_under_no_grad_writing_is_noticed_all_the_same():
    @enforce
    def f(x: Row):
        x.add_(1)

    with torch.no_grad(), warns(CastWarning, InplaceOnCastWarning):
        f(f64().requires_grad_())


# ---------------------------------------------------------------- mutates and out


@pytest.mark.parametrize(
    "declare",
    [
        lambda body: enforce(mutates=("x",))(body),
        lambda body: enforce(mutates=["x", "y"])(body),
    ],
)
def test_what_is_declared_as_written_to_is_checked_and_never_cast(declare):
    def body(x: Row, y: Row):
        x.add_(y)

    f, x = declare(body), f32()
    f(x, f32())
    assert torch.equal(x, 2 * f32())
    wrong = f64()
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_gradient_comes_back_in_the_callers_dtype(dtype):
    @enforce
    def f(x: Row, w: Row):
        return (x * w).sum()

    x = f64().to(dtype).requires_grad_()
    with pytest.warns(CastWarning):
        f(x, 2 * torch.ones(3)).backward()
    assert x.grad.dtype is dtype
    assert torch.equal(x.grad, torch.full((3,), 2, dtype=dtype))


def test_gradients_flow_when_the_repair_is_a_habit_too():
    @enforce
    def f(x: Row):
        return (x * x).sum()

    def call():
        x = f64().requires_grad_()
        f(x).backward()
        return x.grad

    with pytest.warns(CastWarning):
        first = call()
    for _ in range(3):
        assert torch.equal(call(), first)
    assert first.dtype is torch.float64


def test_a_parameter_that_is_cast_still_learns():
    weight = nn.Parameter(f64())

    @enforce
    def f(w: Row):
        assert w.requires_grad
        return w.sum()

    with pytest.warns(CastWarning):
        f(weight).backward()
    assert torch.equal(weight.grad, torch.ones(3, dtype=torch.float64))


def test_a_cast_of_a_result_is_differentiable():
    @enforce
    def f(x: Float[Tensor, "n"]) -> Row:
        return x * 2

    x = f64().requires_grad_()
    with pytest.warns(CastWarning):
        f(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0, dtype=torch.float64))


def test_a_tensor_that_stands_twice_gathers_both_gradients():
    @enforce
    def f(x: Row, y: Row):
        return (x * y).sum()

    x = f64().requires_grad_()
    with pytest.warns(CastWarning):
        f(x, x).backward()
    assert torch.equal(x.grad, 2 * f64())


def test_casts_pass_through_vmap_and_grad():
    @enforce
    def f(x: Row):
        return (x * x).sum()

    with pytest.warns(CastWarning):
        assert torch.equal(torch.func.grad(f)(f64()), 2 * f64())
    with pytest.warns(CastWarning):
        assert torch.func.vmap(f)(torch.ones(4, 3, dtype=torch.float64)).shape == (4,)


def test_casts_of_double_backward():
    @enforce
    def f(x: Row):
        return (x**3).sum()

    x = f64().requires_grad_()
    with pytest.warns(CastWarning):
        (grad,) = torch.autograd.grad(f(x), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    assert torch.equal(second, 6 * f64())


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


def test_an_expanded_tensor_beside_a_plain_one_is_kept_expanded_every_time():
    @enforce
    def f(x: Float32[Tensor, "a b"], mask: Float32[Tensor, "a b"]):
        return mask.stride()

    def call(mask):
        return f(torch.zeros(4, 5, dtype=torch.float64), mask)

    with pytest.warns(CastWarning):
        call(torch.zeros(4, 5, dtype=torch.float64))
    call(torch.zeros(4, 5, dtype=torch.float64))
    assert call(torch.zeros(4, 1, dtype=torch.float64).expand(4, 5)) == (1, 0)


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(2, 3, 4, 5, dtype=torch.float64).to(memory_format=torch.channels_last),
        torch.zeros(4, 5, dtype=torch.float64).t(),
        torch.zeros(3, 4, 5, dtype=torch.float64).permute(2, 0, 1),
    ],
    ids=["channels_last", "transposed", "permuted"],
)
def test_a_cast_keeps_the_order_of_strides(x):
    @enforce
    def f(x: Float32[Tensor, "..."]):
        return x

    with pytest.warns(CastWarning):
        assert f(x).stride() == x.stride()


def test_a_cast_of_a_slice_copies_the_slice_only():
    @enforce
    def f(x: Float32[Tensor, "..."]):
        return x

    with pytest.warns(CastWarning):
        assert f(torch.zeros(1_000_000, dtype=torch.float64)[:10]).untyped_storage().nbytes() == 40


LAYOUTS = {
    "sparse": lambda: torch.eye(3, dtype=torch.float64).to_sparse(),
    "sparse CSR": lambda: torch.eye(3, dtype=torch.float64).to_sparse_csr(),
    "overlapping": lambda: torch.arange(5, dtype=torch.float64).as_strided((3, 3), (1, 1)),
    "empty": lambda: torch.zeros(0, 3, dtype=torch.float64),
    "meta": lambda: torch.zeros(3, 3, dtype=torch.float64, device="meta"),
    "parameter": lambda: nn.Parameter(torch.eye(3, dtype=torch.float64)),
    "inference": lambda: inference(torch.eye(3, dtype=torch.float64)),
    "conjugate": lambda: torch.eye(3, dtype=torch.complex128).conj().imag,
    "buffer": lambda: nn.Buffer(torch.eye(3, dtype=torch.float64)),
}


def inference(x):
    with torch.inference_mode():
        return x.clone()


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@silent
def test_tensors_of_every_layout_are_repaired_again_and_again(make):
    @enforce
    def f(x: Float32[Tensor, "..."]):
        return x

    def call(x):
        return f(x)

    for _ in range(2):
        call(torch.eye(3, dtype=torch.float64))
    for _ in range(3):
        x = make()
        got = call(x)
        assert got.dtype is torch.float32
        assert got.shape == x.shape
        assert got.layout is x.layout
        assert x.dtype is torch.float64


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_tensors_of_every_layout_are_repaired_at_first_sight(make):
    @enforce
    def f(x: Float32[Tensor, "..."]):
        return x

    with pytest.warns(CastWarning):
        assert f(make()).dtype is torch.float32
    assert casts()[0].count == 1


def test_a_nested_tensor_is_repaired():
    @enforce
    def f(x: Float32[Tensor, "..."]):
        return x

    def call():
        return f(torch.nested.nested_tensor([f64(2), f64(3)], layout=torch.jagged))

    with pytest.warns(CastWarning):
        assert call().dtype is torch.float32
    for _ in range(2):
        assert call().dtype is torch.float32


def test_a_tensor_subclass_stays_one():
    class Tagged(Tensor):
        pass

    @enforce
    def f(x: Float32[Tensor, "n"]):
        return x

    def call():
        return f(f64().as_subclass(Tagged))

    with pytest.warns(CastWarning):
        assert type(call()) is Tagged
    for _ in range(2):
        assert type(call()) is Tagged


# ---------------------------------------------------------------- the caller's own


def snapshot(x):
    return x.clone(), x.dtype, x.stride(), x.data_ptr(), x._version, x.requires_grad, x.grad, x.is_leaf


MAKERS = [f64, lambda: f64().requires_grad_(), lambda: f64().half(), lambda: torch.zeros(3).to(torch.bfloat16)]


@silent
@pytest.mark.parametrize("make", MAKERS)
def test_nothing_is_ever_written_to_the_callers_tensors(make):
    @enforce
    def f(x: Row, xs: list[Row]) -> Float32[Tensor, ""]:
        return x.sum() + xs[0].sum()

    x = make()
    before = snapshot(x)
    for _ in range(3):
        f(x, [x])
    after = snapshot(x)
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_a_call_that_keeps_its_contract_gives_bit_identical_results():
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        @enforce
        def forward(self, x: Float[Tensor, "n 8"]) -> Float[Tensor, "n 8"]:
            return self.layer(x)

    x = torch.randn(4, 8)
    assert torch.equal(Net()(x), layer(x))


def test_the_random_state_is_left_alone():
    @enforce
    def f(x: Row):
        return torch.rand(3)

    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with pytest.warns(CastWarning):
        assert torch.equal(f(f64()), expected)


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
    for word in ("clamp", "skip_args", "wider"):
        assert word in str(caught.value)
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


@pytest.mark.parametrize(("verify", "second"), [("first", "passes"), ("always", "raises"), ("never", "passes")])
@pytest.mark.parametrize("inside", [False, True])
def test_when_a_narrowing_is_verified(verify, second, inside):
    @enforce(verify=verify)
    def f(x: Row):
        return x

    @enforce(verify=verify)
    def first(xs: list[Row]):
        return xs[0]

    def call(x):
        return first([x]) if inside else f(x)

    big = torch.full((3,), 1e300, dtype=torch.float64)
    with pytest.warns(CastWarning):
        call(f64())
    call(f64())
    if second == "raises":
        with pytest.raises(CastError):
            call(big)
    else:
        assert call(big).isinf().all()


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


def test_never_means_not_even_once():
    @enforce(verify="never")
    def f(x: Row):
        return x

    with pytest.warns(CastWarning):
        assert f(torch.full((3,), 1e300, dtype=torch.float64)).isinf().all()


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


def test_a_widening_needs_no_look_and_loses_nothing():
    @enforce(casting="safe")
    def f(x: Row, index: Int64[Tensor, "n"]):
        return x, index

    with pytest.warns(CastWarning):
        x, index = f(f32().half(), torch.arange(3, dtype=torch.uint8))
    assert (x.dtype, index.dtype) == (torch.float32, torch.int64)
