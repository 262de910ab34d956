"""Contracts inside `torch.compile(fullgraph=True)`: one graph, casts in it, the mode of the trace."""

from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounter
from versions import since

import dtypeguard
from dtypeguard import DtypeError, ShapeError


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@dtypeguard.enforce
def attend(q: Float32[Tensor, "b t d"], k: Float32[Tensor, "b s d"], bias: Float[Tensor, "t s"] | None = None):
    scores = q @ k.mT
    return scores if bias is None else scores + bias


@dtypeguard.enforce
def halves(x: Float[Tensor, "n"]) -> Float[Tensor, "n//2"]:
    return x[: x.shape[0] // 2]


@dtypeguard.enforce
def gather(parts: list[Float32[Tensor, "_ d"]], index: Int64[Tensor, "n"]) -> Float32[Tensor, "n d"]:
    return torch.cat(parts)[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, cond=None):
        y = self.fc(x)
        return y if cond is None else y + cond["p"]


class Scales(Net):
    def forward(self, x, scale):
        return self.fc(x) * scale.to(x.dtype)


class Annotated(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    @dtypeguard.enforce
    def forward(self, x: Float[Tensor, "b 4"]) -> Float[Tensor, "b 2"]:
        return self.fc(x)


class OfItsSize(Net):
    def forward(self, x: Float[Tensor, "b {self.fc.in_features}"], n: int) -> Float[Tensor, "{n}*2-1 _"]:
        return self.fc(x)


class Checked(OfItsSize):
    forward = dtypeguard.enforce(OfItsSize.forward)


f64 = torch.float64
CALLS = {
    "enforced function": (lambda: attend, lambda: (torch.ones(2, 3, 4), torch.ones(2, 5, 4))),
    "optional argument": (lambda: attend, lambda: (torch.ones(2, 3, 4), torch.ones(2, 5, 4), torch.ones(3, 5))),
    "symbolic axis": (lambda: halves, lambda: (torch.ones(6),)),
    "list of tensors": (lambda: gather, lambda: ([torch.ones(2, 3), torch.ones(1, 3)], torch.tensor([0, 2]))),
    "enforced forward": (Annotated, lambda: (torch.ones(3, 4),)),
    "axes with braces, enforced": (Checked, lambda: (torch.ones(3, 4), 2)),
    "axes with braces, guarded": (lambda: dtypeguard.guard(OfItsSize()), lambda: (torch.ones(3, 4), 2)),
    "guarded model": (lambda: dtypeguard.guard(Net()), lambda: (torch.ones(3, 4),)),
    "guarded model, dict": (lambda: dtypeguard.guard(Net()), lambda: (torch.ones(3, 4), {"p": torch.ones(3, 4)})),
    "guarded annotated model": (lambda: dtypeguard.guard(Annotated()), lambda: (torch.ones(3, 4),)),
    "guarded stack": (
        lambda: dtypeguard.guard(nn.Sequential(Net(), nn.ReLU(), Net()), depth="all"),
        lambda: (torch.ones(3, 4),),
    ),
    **{
        f"side input, depth={depth}": (
            lambda depth=depth: dtypeguard.guard(Scales().bfloat16(), mode="strict", depth=depth),
            lambda: (torch.ones(3, 4, dtype=torch.bfloat16), torch.ones(4)),
        )
        for depth in ("auto", "boundary", "all")
    },
    "cast in the graph, function": (lambda: attend, lambda: (torch.ones(2, 3, 4, dtype=f64), torch.ones(2, 5, 4))),
    "cast in the graph, forward": (Annotated, lambda: (torch.ones(3, 4, dtype=f64),)),
    "cast in the graph, guard": (
        lambda: dtypeguard.guard(Net()),
        lambda: (torch.ones(3, 4, dtype=f64), {"p": torch.ones(3, 4, dtype=f64)}),
    ),
}


@pytest.mark.thin(3)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_one_graph_and_the_eager_result(name, dynamic):
    make, arguments = CALLS[name]
    target, counter = make(), CompileCounter()
    compiled = torch.compile(target, fullgraph=True, backend=counter, dynamic=dynamic)
    wanted = target(*arguments())
    assert torch.equal(compiled(*arguments()), wanted)
    compiled(*arguments())
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # inductor's own
def test_inductor_runs_it_too():
    model = dtypeguard.guard(Annotated())
    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), model(x))


def test_a_cast_in_the_graph_is_recorded_and_said_once_when_traced():
    compiled = torch.compile(dtypeguard.guard(Net()), fullgraph=True, backend="eager")
    x = torch.ones(3, 4, dtype=f64)
    with pytest.warns(dtypeguard.CastWarning, match="`x` was cast from float64 to float32"):
        compiled(x)
    compiled(x)
    (record,) = dtypeguard.casts()
    assert (record.argument, record.from_dtype, record.to_dtype, record.count) == ("x", f64, torch.float32, 1)


BROKEN = {
    "dtype": (
        DtypeError,
        (torch.ones(2, 3, 4, dtype=f64), torch.ones(2, 5, 4)),
        "argument `q` is float64, the annotation wants float32",
    ),
    "axis": (ShapeError, (torch.ones(2, 3, 4), torch.ones(1, 5, 4)), "argument `k` has axis b=1, but b=2 in `q`"),
    "rank": (
        ShapeError,
        (torch.ones(2, 3, 4), torch.ones(5, 4)),
        "argument `k` has 2 axes, the annotation wants 3 axes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_violation_is_our_exception_without_fullgraph(name):
    kind, arguments, text = BROKEN[name]
    with dtypeguard.mode("strict"), pytest.raises(kind) as caught:
        torch.compile(attend, backend="eager")(*arguments)
    assert text in str(caught.value)


SAID = {"rank": since("torch", "2.13", "under fullgraph a wrong number of axes ends in Dynamo's words")}


@pytest.mark.parametrize("name", [pytest.param(name, marks=SAID.get(name, ())) for name in BROKEN])
def test_a_violation_carries_our_text_with_fullgraph(name):
    kind, arguments, text = BROKEN[name]
    with dtypeguard.mode("strict"), pytest.raises(Unsupported) as caught:
        torch.compile(attend, fullgraph=True, backend="eager")(*arguments)
    assert kind.__name__ in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_the_mode_is_the_one_at_trace_time_and_a_change_traces_anew():
    counter = CompileCounter()
    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    q, k = torch.ones(2, 3, 4, dtype=f64), torch.ones(2, 5, 4)
    with dtypeguard.mode("lenient"):
        assert compiled(q, k).dtype is torch.float32
    with dtypeguard.mode("strict"), pytest.raises(Unsupported):
        compiled(q, k)
    with dtypeguard.mode("lenient"):
        assert compiled(q, k).dtype is torch.float32
    assert counter.frame_count == 1
    dtypeguard.set_mode("strict")
    with pytest.raises(Unsupported):
        compiled(q, k)


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_mode_block_inside_the_compiled_function():
    def program(q, k):
        with dtypeguard.mode("lenient"):
            return attend(q, k)

    dtypeguard.set_mode("strict")
    compiled = torch.compile(program, fullgraph=True, backend="eager")
    assert compiled(torch.ones(2, 3, 4, dtype=f64), torch.ones(2, 5, 4)).dtype is torch.float32
    assert dtypeguard.get_mode() == "strict"


def test_each_function_has_code_of_its_own():
    """Dynamo's recompile limit counts per code object."""

    def make(n):
        def fn(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
            return x * n

        return dtypeguard.enforce(fn)

    functions = [make(n) for n in range(2)]
    assert len({fn.__code__ for fn in functions}) == 2
    for n, fn in enumerate(functions):
        assert torch.compile(fn, fullgraph=True, backend="eager")(torch.ones(2)).tolist() == [n, n]


class Named(Tensor):
    """A subclass that answers in Python, which Dynamo traces."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@dtypeguard.enforce
@dataclass
class Batch:
    x: Float32[Tensor, "b d"]
    y: Int64[Tensor, "b"]

    @property
    @dtypeguard.enforce
    def halves(self) -> Float[Tensor, "b d"]:
        return self.x / 2

    @dtypeguard.enforce
    def times(self, factor: float) -> Float[Tensor, "b d"]:
        return self.x * factor

    @staticmethod
    @dtypeguard.enforce
    def scaled(x: Float32[Tensor, "b d"]) -> Float32[Tensor, "b d"]:
        return x * 2


def total(x, y):
    batch = Batch(x, y)
    return batch.scaled(batch.x).sum() + batch.times(2.0).sum() + batch.halves.sum() + batch.y.sum()


def test_a_dataclass_that_is_made_in_the_graph():
    counter, y = CompileCounter(), torch.ones(2, dtype=torch.int64)
    assert torch.compile(total, fullgraph=True, backend=counter)(torch.ones(2, 3), y) == 29
    assert counter.frame_count == 1
    with dtypeguard.mode("strict"), pytest.raises(Unsupported, match="argument `x`"):
        torch.compile(total, fullgraph=True, backend="eager")(torch.ones(2, 3).half(), y)
    with dtypeguard.mode("lenient"), pytest.warns(dtypeguard.CastWarning):
        assert torch.compile(total, fullgraph=True, backend="eager")(torch.ones(2, 3).double(), y) == 29


def test_a_subclass_is_checked_in_the_graph_too():
    counter = CompileCounter()
    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    q, k = (torch.ones(2, n, 4).as_subclass(Named) for n in (3, 5))
    assert torch.equal(compiled(q, k), attend(q, k))
    assert counter.frame_count == 1
    with dtypeguard.mode("strict"), pytest.raises(Unsupported, match="argument `q` is float64"):
        compiled(q.double(), k)
