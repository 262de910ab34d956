"""CUDA graphs, compiled code that uses them, and Triton kernels."""

import copy
import functools

import pytest
import torch
from jaxtyping import Float, Float32
from support import F32, F64
from torch import Tensor, nn

import dtypeguard
from dtypeguard import CastError, CastWarning, DtypeError, ShapeError, enforce, guard

try:
    import triton
    from triton import language as tl
except ImportError:
    triton = None

modes = pytest.mark.parametrize("given", [F32, F64], ids=["right", "repaired"])
close = functools.partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)  # graphs may choose other algorithms


class Block(nn.Module):
    """No sum but those of matrix products, so that compiled code has no order to choose."""

    def __init__(self, width=32):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


def blocks(device):
    return nn.Sequential(Block(), Block()).to(device)


def batch(dtype, device, **options):
    return torch.randn(8, 32, dtype=dtype, device=device, **options)


def pair(device, **options):
    plain = blocks(device)
    return plain, guard(copy.deepcopy(plain), **options)


# ---------------------------------------------------------------- graphs


def warmed(model, x):
    """Three calls on a side stream, as torch's documentation asks for before a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(side)


def captured(model, *inputs):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = [model(x) for x in inputs]
    return graph, y[0]


@modes
@pytest.mark.parametrize("depth", ["auto", "all"])
@torch.no_grad()
def test_a_captured_call_replays_what_the_eager_one_computes(given, depth, gpu):
    """Even the first repair of a line: to look for lost values would wait for the GPU, which a capture forbids."""
    plain, model = pair(gpu, mode="strict" if given is F32 else "lenient", depth=depth, verify="always")
    x = batch(given, gpu)
    warmed(plain, x.float())
    if given is F32:
        graph, y = captured(model, x)
        assert dtypeguard.casts() == []
    else:
        with pytest.warns(CastWarning, match="cast from float64 to float32"):
            graph, y = captured(model, x)
        (record,) = dtypeguard.casts()
        assert (record.count, record.error) == (1, None)
    for _ in range(3):
        x.copy_(batch(given, gpu))
        graph.replay()
        assert y.dtype is F32
        close(y, plain(x.float()))
    assert sum(record.count for record in dtypeguard.casts()) == (given is F64)


REFUSED = {
    "strict": (DtypeError, {"mode": "strict"}),
    "casting": (CastError, {"mode": "lenient", "casting": "safe"}),
}


@pytest.mark.parametrize("name", REFUSED)
@torch.no_grad()
def test_a_violation_during_capture_is_ours_and_does_no_harm(name, gpu):
    error, options = REFUSED[name]
    plain, model = pair(gpu, **options)
    x, wrong = batch(F32, gpu), batch(F64, gpu)
    warmed(plain, x)
    with pytest.raises(error, match="argument `input` is float64"):
        captured(model, x, wrong)
    torch.cuda.synchronize()
    close(model(x), plain(x))
    graph, y = captured(model, x)
    x.copy_(batch(F32, gpu))
    graph.replay()
    close(y, plain(x))
    assert dtypeguard.casts() == []


@modes
def test_graphed_callables_train_as_the_eager_model(given, gpu):
    plain, model = pair(gpu, mode="strict" if given is F32 else "lenient", depth="all")
    sample = batch(given, gpu, requires_grad=True)
    if given is F32:
        graphed = torch.cuda.make_graphed_callables(model, (sample,))
    else:
        with pytest.warns(CastWarning, match="cast from float64 to float32"):
            graphed = torch.cuda.make_graphed_callables(model, (sample,))
    assert graphed is model
    counted = [record.count for record in dtypeguard.casts()]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, plain)]
    for _ in range(4):
        x = batch(given, gpu, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        for optimizer in optimizers:
            optimizer.zero_grad()
        graphed(x).square().mean().backward()
        plain(y.float()).square().mean().backward()
        assert x.grad.dtype is given
        close(x.grad, y.grad)
        for optimizer in optimizers:
            optimizer.step()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        close(mine, theirs)
    assert [record.count for record in dtypeguard.casts()] == counted  # a replay runs no Python


def test_a_graphed_model_is_guarded_by_guarding_it_again(gpu):
    """A replay copies what it is given into its own input, of whatever dtype; the guard belongs in front of it."""
    plain = blocks(gpu)
    model = torch.cuda.make_graphed_callables(copy.deepcopy(plain), (batch(F32, gpu),))
    guard(model, mode="strict")
    x = batch(F32, gpu)
    close(model(x), plain(x))
    with pytest.raises(DtypeError) as caught:
        model(x.double())
    assert (caught.value.actual, caught.value.expected) == (F64, F32)
    guard(model, mode="lenient")
    with pytest.warns(CastWarning):
        close(model(x.double()), plain(x))


# ---------------------------------------------------------------- compiled


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@modes
@pytest.mark.parametrize("grad", [False, True])
def test_reduce_overhead_gives_what_it_gives_without_a_guard(given, grad, device, fresh_dynamo):
    plain, model = pair(device, mode="strict" if given is F32 else "lenient", depth="all")
    compiled, twin = (torch.compile(m, mode="reduce-overhead", fullgraph=True) for m in (model, plain))

    def run(call, module, x):
        module.zero_grad()
        torch.compiler.cudagraph_mark_step_begin()
        with torch.set_grad_enabled(grad):
            y = call(x)
            if grad:
                y.square().mean().backward()
        return [y.detach().clone(), *(p.grad.clone() for p in module.parameters() if grad)]

    def one(n):
        torch.manual_seed(n)
        x = batch(given, device)
        return run(compiled, model, x), run(twin, plain, x.float()), run(plain, plain, x.float())

    if given is F64:
        with pytest.warns(CastWarning, match="cast from float64 to float32"):
            one(0)
    for n in range(4):  # to warm up, to record, to replay
        got, expected, eager = one(n)
        assert given is F64 or all(map(torch.equal, got, expected))
        close(got, expected)
        close(got, eager)
    assert len(dtypeguard.casts()) == (given is F64)


# ---------------------------------------------------------------- Triton


if triton is not None:

    @triton.jit
    def _add(x, y, out, n, BLOCK: tl.constexpr):  # noqa: N803  (as Triton's own examples write it)
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@enforce
def add(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"], out: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """The kernel reads and writes memory as it is told to: what a wrong dtype would make of it nobody would see."""
    n = out.numel()
    _add[((n + 255) // 256,)](x, y, out, n, BLOCK=256)
    return out


@pytest.fixture
def vectors(gpu):
    pytest.importorskip("triton")
    return torch.randn(1000, device=gpu), torch.randn(1000, device=gpu), torch.zeros(1000, device=gpu)


def test_a_triton_kernel_behind_enforce(vectors, strict):
    x, y, out = vectors
    assert add(x, y, out) is out
    assert torch.equal(out, x + y)
    assert dtypeguard.casts() == []


def test_a_triton_kernel_is_not_launched_with_a_wrong_argument(vectors):
    x, y, out = vectors
    with dtypeguard.mode("strict"):
        for error, argument, args in (
            (DtypeError, "y", (x, y.half(), out)),
            (DtypeError, "x", (x.double(), y, out)),
            (ShapeError, "y", (x, y[:999], out)),
            (ShapeError, "out", (x, y, out[:999])),
        ):
            with pytest.raises(error) as caught:
                add(*args)
            assert caught.value.argument == argument
    assert not out.any()
    with pytest.warns(CastWarning, match="`y` was cast from float16 to float32"):
        add(x, y.half(), out)
    assert torch.equal(out, x + y.half().float())


@pytest.mark.slow
def test_a_triton_kernel_behind_enforce_compiles(vectors, fresh_dynamo):
    x, y, _ = vectors

    def program(x, y):
        return add(x * 2, y, torch.zeros_like(x)) + 1

    compiled = torch.compile(program, fullgraph=True)
    with dtypeguard.mode("strict"):
        for _ in range(2):
            close(compiled(x, y), x * 2 + y + 1)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="argument `y` is float16"):
            compiled(x, y.half())
    with pytest.warns(CastWarning, match="`y` was cast from float16 to float32"):
        close(compiled(x, y.half()), x * 2 + y.half().float() + 1)
