"""`diff` of one function that is written in two ways, and of faults that only its caller's side shows."""

import copy
import functools
import inspect
import json
import math
import re
from typing import Any

import diff_models as models
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dtypeguard

ANOTHER = "another function"


class Attention(nn.Module):
    """Attention of one head, with a mask that its caller gives."""

    def __init__(self, scale: float = 0.25) -> None:
        super().__init__()
        self.q, self.k, self.scale = nn.Linear(16, 16), nn.Linear(16, 16), scale

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        weights: Tensor = (self.q(x) * self.scale @ self.k(x).mT + mask).softmax(-1)
        return weights @ x


class Block(nn.Module):
    """A norm, attention and a perceptron; the mask holds `least` at what comes later."""

    def __init__(self, least: float = -math.inf) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(16), Attention()
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.least = least

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((x.shape[1], x.shape[1]), self.least, dtype=x.dtype).triu(1)
        out: Tensor = self.mlp(self.attention(self.norm(x), mask))
        return out


class Table(nn.Module):
    """Angles, of frequencies that are kept in a buffer or computed."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.out = nn.Linear(16, 16)
        self.steps: Any
        if kept:
            self.register_buffer("steps", self.frequencies(), persistent=False)
        else:
            self.steps = None

    def frequencies(self) -> Tensor:
        return 1 / 10000.0 ** (torch.arange(16).float() / 16)

    def forward(self, x: Tensor) -> Tensor:
        steps = self.frequencies() if self.steps is None else self.steps
        out: Tensor = self.out(x * (torch.arange(x.shape[1]).float()[:, None] * steps).cos())
        return out


def scaled(b: Block) -> None:
    b.attention.scale = 1.0
    b.attention.q.weight.mul_(0.25)
    b.attention.q.bias.mul_(0.25)


def permuted(b: Block) -> None:
    order = torch.randperm(32)
    b.mlp[0].weight.copy_(b.mlp[0].weight[order])
    b.mlp[0].bias.copy_(b.mlp[0].bias[order])
    b.mlp[2].weight.copy_(b.mlp[2].weight[:, order])


def norm_in_weights(b: Block) -> None:
    b.norm.weight.mul_(2)
    b.norm.bias.mul_(2)
    for layer in (b.attention.q, b.attention.k):
        layer.weight.div_(2)
    b.mlp[0].weight.div_(2)


def least(b: Block) -> None:
    b.least = -1e30


def eps(b: Block) -> None:
    b.norm.eps = 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("change", [scaled, permuted, norm_in_weights, least])
def test_what_is_made_up_for_is_no_other_function(change: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, x = Block().to(dtype), torch.randn(2, 8, 16, dtype=dtype)
    b = copy.deepcopy(a)
    with torch.no_grad():
        change(b)
    found = dtypeguard.diff(a, b, x)
    assert found.verdict != ANOTHER, str(found)
    assert change is least or any("makes up for" in note for note in found.notes)
    eps(b)
    if (change, dtype) == (norm_in_weights, torch.bfloat16):
        b.norm.eps = 0.1  # less is hidden by what rounding does to such weights
    found = dtypeguard.diff(a, b, x)
    assert (found.verdict, found.where and found.where.name) == (ANOTHER, "norm"), str(found)


class Rounded(Block):
    """What comes out hides what is inside."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum(-1).sign()


def test_what_alone_differs_is_not_made_up_for() -> None:
    torch.manual_seed(0)
    a, x = Rounded(), torch.randn(2, 8, 16)
    b = copy.deepcopy(a)
    b.mlp[1] = nn.GELU("tanh")
    found = dtypeguard.diff(a, b, x)
    assert found.distance == 0
    assert (found.verdict, found.where and found.where.name) == (ANOTHER, "mlp.1")


class Turned(nn.Module):
    """A linear layer as a convolution over the last axis but one."""

    def __init__(self, layer: nn.Linear, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv1d(8, 8, 1), norm
        self.convolution.weight.data.copy_(layer.weight.data[..., None])
        self.convolution.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.convolution(x.mT).mT)
        return out


def test_axes_in_another_order_are_no_other_function() -> None:
    torch.manual_seed(0)
    layer, norm = nn.Linear(8, 8), nn.LayerNorm(8)
    assert dtypeguard.diff(nn.Sequential(layer, norm), Turned(layer, norm), torch.randn(2, 5, 8)).verdict != ANOTHER


def test_gradients_beside_what_is_made_up_for_are_compared() -> None:
    torch.manual_seed(0)
    a, x = Block(), torch.randn(2, 8, 16)
    b = copy.deepcopy(a)
    with torch.no_grad():
        permuted(b)
    found = dtypeguard.diff(a, b, x, loss=lambda out: out.square().mean())
    assert found.verdict != ANOTHER, str(found)
    assert {row.name for row in found.gradients} >= {"norm.weight", "attention.q.weight"}
    assert any("4 parameters of b were not compared" in note for note in found.notes), found.notes


def test_gradients_of_modules_that_nobody_calls_are_compared() -> None:
    torch.manual_seed(0)
    a = nn.MultiheadAttention(8, 2, batch_first=True)  # it takes the weights of `out_proj`, which it does not call
    x = torch.randn(2, 3, 8)
    found = dtypeguard.diff(a, copy.deepcopy(a), (x, x, x), loss=lambda out: out[0].square().mean())
    assert "out_proj.weight" in {row.name for row in found.gradients}
    assert not found.notes


def test_a_table_that_is_kept_or_computed_is_no_other_function() -> None:
    torch.manual_seed(0)
    a, b, x = Table(True), Table(False), torch.randn(2, 300, 16)
    b.load_state_dict(a.state_dict())
    assert dtypeguard.diff(a, b, x).verdict == "same"


class Renamed(Attention):
    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(hidden, bias)


def test_arguments_may_have_other_names() -> None:
    torch.manual_seed(0)
    a, x = Block(), torch.randn(2, 8, 16)
    b = copy.deepcopy(a)
    b.attention.__class__ = Renamed
    b.mlp[1] = nn.GELU("tanh")
    found = dtypeguard.diff(a, b, x)
    assert found.where is not None
    told = ("approximate is 'tanh', and a's is 'none'",)
    assert (found.verdict, found.where.name, found.where.state) == (ANOTHER, "mlp.1", told)
    assert "gets no" not in str(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_functions_around_weights_are_told_apart(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(16, 16, dtype=dtype), torch.randn(4, 16, dtype=dtype)
    model = Block().to(dtype)
    other = copy.deepcopy(model)
    eps(other)
    pairs = [
        (lambda x: F.layer_norm(x @ weight, (16,)), lambda x: F.layer_norm(x @ weight, (16,), eps=1e-4)),
        (lambda x: model(x[None]), lambda x: other(x[None])),
    ]
    for a, b in pairs:
        assert dtypeguard.diff(a, b, x).verdict == ANOTHER
        assert dtypeguard.diff(a, a, x).verdict == "same"


def test_a_result_of_another_shape_is_the_first_that_differs() -> None:
    a = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Conv2d(4, 4, 3, padding=1))
    b = copy.deepcopy(a)
    b[0].stride, b[1].stride = (1, 1), (2, 2)
    found = dtypeguard.diff(a, b, torch.randn(1, 3, 8, 8))
    assert found.where is not None
    assert (found.verdict, found.where.name) == (ANOTHER, "0")
    assert found.where.state == ("returns [1, 4, 8, 8], and a's [1, 4, 4, 4]", "stride is (1, 1), and a's is (2, 2)")


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda y: y, r"a returns float32\[4, 8\], float32\[4, 8\], and b float32\[4, 8\]"),
        (lambda y: (y[..., None], 2 * y), r"float32\[4, 8, 1\]"),
        (lambda y: (y, {"aux": y.sum()}), r"float32\[\]"),
    ],
)
def test_what_is_not_compared_is_said(other: Any, told: str) -> None:
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)
    found = dtypeguard.diff(lambda x: (layer(x), 2 * layer(x)), lambda x: other(layer(x)), x)
    assert any("of another structure" in note for note in found.notes)
    assert re.search(told, " ".join(found.notes))


def decorated(forward: Any) -> Any:
    @functools.wraps(forward)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return inner


class Wrapped(nn.Module):
    """As libraries write it: `forward` is decorated, and calls go through a `__call__` of its own."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), scale

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)

    @decorated
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) * self.scale
        return out


def test_the_line_is_that_of_the_forward_and_not_of_its_wrapper() -> None:
    a = nn.Sequential(Wrapped(1.0), Wrapped(1.0))
    b = copy.deepcopy(a)
    cast = b[1]
    assert isinstance(cast, Wrapped)
    cast.scale = 2.0
    found = dtypeguard.diff(a, b, torch.randn(2, 4))
    assert found.where is not None
    lines = inspect.getsourcelines(inspect.unwrap(Wrapped.forward))
    assert found.where.site.endswith(f"test_diff_written.py:{lines[1]}")


# ---------------------------------------------------------------- compiled parts


def wrong(graph: Any, inputs: Any) -> Any:
    """A compiler whose floating results are 1 % too large."""
    return lambda *args: tuple(t * 1.01 if isinstance(t, Tensor) and t.is_floating_point() else t for t in graph(*args))


def whole(model: Block) -> None:
    model.compile(backend=wrong)


def part(model: Block) -> None:
    model.attention.compile(backend=wrong)


def wrapped(model: Block) -> None:
    model.attention = torch.compile(model.attention, backend=wrong)  # type: ignore[assignment]


def forward(model: Block) -> None:
    model.forward = torch.compile(model.forward, backend=wrong)  # type: ignore[method-assign]


@pytest.mark.parametrize("compiling", [whole, part, wrapped, forward])
def test_parts_that_are_compiled_run_compiled(compiling: Any) -> None:
    torch.manual_seed(0)
    a, x = Block(), torch.randn(2, 8, 16)
    b = copy.deepcopy(a)
    compiling(b)
    found = dtypeguard.diff(a, b, x)
    with torch.no_grad():
        apart = float((a(x) - b(x)).norm() / a(x).norm())
    assert found.verdict == ANOTHER
    assert found.distance == pytest.approx(apart, rel=1e-3)
    torch.compiler.reset()


def test_a_function_that_is_compiled_runs_compiled() -> None:
    def softmax(x: Tensor) -> Tensor:
        return (2 * x).softmax(-1)

    made = torch.compile(softmax, backend=wrong)
    x = torch.randn(4, 8)
    assert dtypeguard.diff(softmax, made, x).verdict == ANOTHER
    assert dtypeguard.diff(softmax, lambda x: made(x), x).verdict == ANOTHER
    assert dtypeguard.diff(softmax, torch.compile(softmax, backend="eager"), x).verdict == "same"
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore")  # of torch.jit, and of `.grad`
def test_traced_modules_are_compared_as_a_whole() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(2, 8)
    assert dtypeguard.diff(model, torch.jit.trace(model, x), x).verdict == "same"


# ---------------------------------------------------------------- gradients and tokens


class Narrow(torch.autograd.Function):
    """Gradients go through float16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.half().to(gradient.dtype)


class Narrowed(Attention):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        narrowed: Any = Narrow.apply(x)  # type: ignore[no-untyped-call]
        return super().forward(narrowed, mask)


def test_gradients_may_round_worse_where_outputs_do_not() -> None:
    torch.manual_seed(0)
    a, x = Block(), torch.randn(2, 8, 16, requires_grad=True)
    b = copy.deepcopy(a)
    b.attention.__class__ = Narrowed
    found = dtypeguard.diff(a, b, x, loss=lambda out: out.square().mean() * 1e-3)
    assert found.verdict == "b rounds worse"
    assert "b rounds worse: in the gradients; in float64 they are the same" in str(found)
    assert x.grad is None


def test_a_loss_that_fails_is_named() -> None:
    layer = nn.Linear(4, 4)
    with pytest.raises(
        dtypeguard.CompareError, match="the loss does not take what a, this Linear, returns: AttributeEr"
    ):
        dtypeguard.diff(layer, copy.deepcopy(layer), torch.ones(2, 4), loss=lambda out: out.logits)


@pytest.mark.parametrize("module", [False, True])
def test_gradients_of_what_is_in_the_batch(module: bool) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=module)

    class Whole(nn.Module):
        def __init__(self, cut: bool) -> None:
            super().__init__()
            self.layer, self.cut = copy.deepcopy(layer), cut

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.layer(x.detach() if self.cut else x) * y  # type: ignore[no-any-return]

    a, b = Whole(False), Whole(True)
    if not module:  # a function that reads a module
        a, b = a.forward, b.forward  # type: ignore[assignment]
    found = dtypeguard.diff(a, b, (x, torch.ones(3, 4)), loss=lambda out: out.square().mean())
    assert found.verdict == ANOTHER
    assert "gradients: b has none of batch[0], and a has" in str(found)
    assert {row.name for row in found.gradients if "batch" in row.name} == (
        {"batch[0]"} if module else {"batch[0]", "batch[1]"}
    )
    assert x.grad is layer.weight.grad is None
    assert a.layer.weight.grad is None if module else a.__self__.layer.weight.grad is None  # type: ignore[attr-defined]


def test_a_function_of_integers_has_no_gradients() -> None:
    with pytest.raises(dtypeguard.CompareError, match="has none to compare: a function has no parameters"):
        dtypeguard.diff(lambda i: i * 0.5, lambda i: i / 2, torch.arange(3), loss=lambda out: out.sum())


def engine(change: Any, tmp_path: Any) -> dtypeguard.results.ProgramDiff:
    torch.manual_seed(0)
    model = models.GPT().eval()
    ids = torch.randint(0, 50, (2, 12))
    said = model(ids)[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0].tolist()
    said[0][3] = change(said[0][3])
    path = tmp_path / "said.json"
    path.write_text(json.dumps(said))
    return dtypeguard.diff(model, path, ids)


def test_an_engine_that_has_no_number_for_a_token(tmp_path: Any) -> None:
    assert engine(lambda p: -math.inf, tmp_path).verdict == ANOTHER
    assert engine(lambda p: p - 5, tmp_path).verdict == ANOTHER
    known = engine(lambda p: None, tmp_path)
    assert known.verdict != ANOTHER
    assert any("1 numbers" in note and "null" in note for note in known.notes)
    with pytest.raises(TypeError, match="holds log probabilities, which come second"):
        dtypeguard.diff(tmp_path / "said.json", models.GPT(), torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(ValueError, match=r"holds NaN, .* write null"):
        engine(lambda p: math.nan, tmp_path)


class Fused(nn.Module):
    """Attention whose three matrices are one."""

    def __init__(self, scale: float = 16**-0.5) -> None:
        super().__init__()
        self.qkv, self.out, self.scale = nn.Linear(16, 48), nn.Linear(16, 16), scale

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((q @ k.mT * self.scale).softmax(-1) @ v)  # type: ignore[no-any-return]


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.parts = nn.ModuleList(Fused(0.3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for norm, part in zip(self.norms, self.parts, strict=True):
            x = x + part(norm(x))
        return x


def doubled(b: Blocks) -> None:
    for part in b.parts:
        for p in part.qkv.parameters():  # type: ignore[union-attr]
            p[:16] *= 2
            p[16:32] /= 2


def folded(b: Blocks) -> None:
    for part in b.parts:
        part.scale = 1.0  # type: ignore[assignment]
        for p in part.qkv.parameters():  # type: ignore[union-attr]
            p[:16] *= 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("change", [doubled, folded])
def test_what_one_module_makes_up_for_in_itself(change: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, x = Blocks().to(dtype), torch.randn(2, 8, 16, dtype=dtype)
    b = copy.deepcopy(a)
    with torch.no_grad():
        change(b)
    found = dtypeguard.diff(a, b, x)
    assert found.verdict != ANOTHER, str(found)  # kernels of a machine may round one of them more
    b.norms[1].eps = 1e-2  # type: ignore[assignment]
    found = dtypeguard.diff(a, b, x)
    assert (found.verdict, found.where and found.where.name) == (ANOTHER, "norms.1"), str(found)


class Chosen(nn.Module):
    """The largest of what a layer gives: half of a small difference in the layer changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.table = nn.Linear(8, 4), nn.Linear(4, 4), nn.Embedding(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(self.second(self.first(x)).argmax(-1))  # type: ignore[no-any-return]


def test_what_is_hidden_is_not_made_up_for() -> None:
    torch.manual_seed(0)
    a, x = Chosen(), torch.randn(4, 8)
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.first.weight *= 1 + 1e-6
        b.second.weight *= 1 + 1e-6
    found = dtypeguard.diff(a, b, x)
    assert (found.verdict, found.where and found.where.name) == (ANOTHER, "first"), str(found)


class Detached(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.detach())


@pytest.mark.parametrize("name", ["q", "k"])
def test_of_modules_that_get_one_tensor_the_one_whose_backward_differs(name: str) -> None:
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(16, 16), Single())
    b = copy.deepcopy(a)
    getattr(b[1], name).__class__ = Detached
    found = dtypeguard.diff(a, b, torch.randn(2, 8, 16), loss=lambda out: out.square().mean())
    assert (found.verdict, found.where and found.where.name) == (ANOTHER, f"1.{name}"), str(found)


class Single(Attention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, torch.zeros(8, 8))


class Tables(nn.Module):
    """A layer gets cosines of its caller, as one tensor of half the width or of the whole."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.whole, self.norm = whole, nn.LayerNorm(16)
        self.layer = Whole() if whole else Half()

    def forward(self, x: Tensor) -> Tensor:
        table = (torch.arange(x.shape[1]).float()[:, None] / 10.0 ** (torch.arange(8).float() / 8)).cos()
        table = torch.cat([table, table], -1) if self.whole else table
        return self.norm(self.layer(x, table.to(x.dtype)))  # type: ignore[no-any-return]


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor, half: Tensor) -> Tensor:
        return self.out(x * torch.cat([half, half], -1))  # type: ignore[no-any-return]


class Whole(Half):
    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return self.out(x * table)  # type: ignore[no-any-return]


def test_a_table_that_a_caller_gives_in_another_shape() -> None:
    torch.manual_seed(0)
    a, x = Tables(True).bfloat16(), torch.randn(2, 12, 16, dtype=torch.bfloat16)
    b = Tables(False).bfloat16()
    b.load_state_dict(a.state_dict())
    assert dtypeguard.diff(a, b, x).verdict == "same"
    b.norm.eps = 1e-2
    found = dtypeguard.diff(a, b, x)
    assert (found.verdict, found.where and found.where.name) == (ANOTHER, "norm"), str(found)


def test_a_capture_of_another_dtype_and_of_channels_last(tmp_path: Any) -> None:
    torch.manual_seed(0)
    a, x = nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 1)), torch.randn(2, 4, 5, 5)
    dtypeguard.capture(a.to(memory_format=torch.channels_last), x, tmp_path / "a.safetensors")
    found = dtypeguard.diff(tmp_path / "a.safetensors", copy.deepcopy(a).bfloat16(), x)
    assert found.verdict == "rounding", str(found)


def test_a_capture_of_a_table_that_the_other_computes(tmp_path: Any) -> None:
    torch.manual_seed(0)
    a, b, x = Table(True), Table(False), torch.randn(2, 300, 16)
    b.load_state_dict(a.state_dict())
    dtypeguard.capture(a, x, tmp_path / "a.safetensors")
    assert dtypeguard.diff(tmp_path / "a.safetensors", b, x).verdict != ANOTHER
    with torch.no_grad():
        b.out.weight[3, 3] += 1e-4
    assert dtypeguard.diff(tmp_path / "a.safetensors", b, x).verdict == ANOTHER
