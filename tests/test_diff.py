"""`diff`: planted differences are found where they are, and another order is never another function."""

import copy
import json
from collections.abc import Callable
from typing import Any

import diff_models as models
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import dtypeguard

ANOTHER, WORSE = "another function", "b rounds worse"
DTYPES = [torch.float32, torch.bfloat16]


def ids() -> Any:
    torch.manual_seed(1)
    return torch.randint(0, 50, (2, 48))


def image() -> Any:
    torch.manual_seed(1)
    return torch.randn(2, 3, 16, 16)


def cross() -> Any:
    torch.manual_seed(1)
    pad = torch.zeros(2, 9, dtype=torch.bool)
    pad[0, 6:] = True
    return {"source": torch.randn(2, 9, 8), "target": torch.randn(2, 5, 8), "pad": pad}


def series() -> Any:
    torch.manual_seed(1)
    return torch.randn(3, 60, 6)


BATCHES = {models.Llama: ids, models.GPT: ids, models.ResNet: image, models.Cross: cross, models.Recurrent: series}


def made(cls: Any, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    torch.manual_seed(0)
    model = cls(**options)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer.uniform_(0.5, 1.5)
        for module in model.modules():
            if isinstance(module, nn.LayerNorm | nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_()
    return model.to(dtype).eval()


def cast(batch: Any, dtype: torch.dtype) -> Any:
    if isinstance(batch, dict):
        return {name: cast(value, dtype) for name, value in batch.items()}
    return batch.to(dtype) if batch.is_floating_point() else batch


def change(path: str, how: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[nn.Module], None]:
    def apply(model: nn.Module) -> None:
        with torch.no_grad():
            parameter = model.get_parameter(path)
            parameter.copy_(how(parameter.clone()))

    return apply


# The architecture; the switch, or what is done to the weights; the module; the verdict in float32 and in bfloat16.
PLANTED: list[tuple[Any, Any, str, str, str]] = [
    (models.Llama, {"eps": 1e-5}, "layers.1.norm1", ANOTHER, ANOTHER),
    (models.Llama, {"eps": 1e-2}, "layers.1.norm1", ANOTHER, ANOTHER),
    (models.Llama, {"half": True}, "layers.1.norm1", "same", WORSE),
    (models.Llama, {"one": True}, "layers.1.norm1", ANOTHER, ANOTHER),
    (models.Llama, {"scale": 1 / 32}, "layers.1.attn", ANOTHER, ANOTHER),
    (models.Llama, {"off": 1}, "layers.1.attn", ANOTHER, ANOTHER),
    (models.Llama, {"off": -1, "fill": -1e9}, "layers.1.attn", ANOTHER, ANOTHER),
    (models.Llama, {"window": 6}, "layers.1.attn", ANOTHER, ANOTHER),
    (models.Llama, {"softcap": 50.0}, "layers.1.attn", ANOTHER, ANOTHER),
    (models.Llama, {"interleaved": True}, "layers.1.attn", ANOTHER, ANOTHER),
    (models.Llama, {"tiled": True}, "layers.1.attn", ANOTHER, ANOTHER),
    (models.Llama, {"base": 500000.0}, "rotary", ANOTHER, ANOTHER),
    (models.Llama, {"rope_half": True}, "rotary", "same", WORSE),
    (models.Llama, {"act": "gelu"}, "layers.1.mlp", ANOTHER, ANOTHER),
    (models.Llama, {"parallel": True}, "layers.1", ANOTHER, ANOTHER),
    (models.Llama, {"post": True}, "layers.1", ANOTHER, ANOTHER),
    (models.Llama, {"residual": 0.99}, "layers.1", ANOTHER, ANOTHER),
    (models.Llama, {"embed_scale": 32**0.5}, "", ANOTHER, ANOTHER),
    (models.Llama, {"untied": True}, "head", ANOTHER, ANOTHER),
    (models.Llama, change("layers.2.attn.o_proj.weight", torch.t), "layers.2.attn.o_proj", ANOTHER, ANOTHER),
    (models.Llama, change("layers.2.mlp.up.weight", lambda w: w * 1.01), "layers.2.mlp.up", ANOTHER, ANOTHER),
    (models.GPT, {"eps": 1e-6}, "h.1.ln_1", ANOTHER, ANOTHER),
    (models.GPT, {"gelu": "none"}, "h.1.act", ANOTHER, ANOTHER),
    (models.GPT, {"order": (1, 0, 2)}, "h.1.attn", ANOTHER, ANOTHER),
    (models.GPT, {"order": (2, 1, 0)}, "h.1.attn", ANOTHER, ANOTHER),
    (models.GPT, {"merged": True}, "h.1.attn", ANOTHER, ANOTHER),
    (models.GPT, {"shift": 1}, "", ANOTHER, ANOTHER),
    (models.GPT, {"bare": True}, "", ANOTHER, ANOTHER),
    (models.GPT, lambda m: m.h[1].drop.train(), "h.1.drop", ANOTHER, ANOTHER),
    (models.GPT, lambda m: m.train(), "h.0.attn.drop", ANOTHER, ANOTHER),
    (models.GPT, change("h.0.fc.bias", torch.zeros_like), "h.0.fc", ANOTHER, ANOTHER),
    (models.GPT, change("h.2.ln_2.weight", torch.ones_like), "h.2.ln_2", ANOTHER, ANOTHER),
    (models.ResNet, {"eps": 1e-3}, "blocks.1.bn2", ANOTHER, ANOTHER),
    (models.ResNet, {"leaky": True}, "blocks.1.relu", ANOTHER, ANOTHER),
    (models.ResNet, {"early": True}, "blocks.1", ANOTHER, ANOTHER),
    (models.ResNet, {"max": True}, "", ANOTHER, ANOTHER),
    (models.ResNet, {"padding": "reflect"}, "blocks.1.conv1", ANOTHER, ANOTHER),
    (models.ResNet, {"pixels": 1 / 255}, "", ANOTHER, ANOTHER),
    (models.ResNet, lambda m: m.blocks[2].bn1.train(), "blocks.2.bn1", ANOTHER, ANOTHER),
    (models.ResNet, lambda m: m.blocks[0].bn2.running_mean.zero_(), "blocks.0.bn2", ANOTHER, ANOTHER),
    (models.Cross, {"first": False}, "encoder", ANOTHER, ANOTHER),
    (models.Cross, {"left": True}, "", ANOTHER, ANOTHER),
    (models.Cross, {"unmasked": True}, "attend", ANOTHER, ANOTHER),
    (models.Cross, {"temperature": 1.01}, "", ANOTHER, ANOTHER),
    (models.Cross, change("attend.in_proj_weight", lambda w: w.roll(32, 0)), "attend", ANOTHER, ANOTHER),
    (models.Recurrent, {"decay": True}, "scan", ANOTHER, ANOTHER),
    (models.Recurrent, {"late": True}, "scan", ANOTHER, ANOTHER),
    (models.Recurrent, {"half": True}, "scan", "same", WORSE),
    (models.Recurrent, {"last": False}, "", ANOTHER, ANOTHER),
    (models.Recurrent, change("lstm.bias_hh_l0", torch.zeros_like), "lstm", ANOTHER, ANOTHER),
]  # fmt: skip


def pair(cls: Any, switch: Any, dtype: torch.dtype) -> tuple[Any, Any]:
    """A model, and the same with a difference; both have one state."""
    a = made(cls, dtype)
    if not isinstance(switch, dict):
        b = copy.deepcopy(a)
        switch(b)
        return a, b
    b = made(cls, dtype, **switch)
    if "untied" not in switch:
        b.load_state_dict(a.state_dict())
    return a, b


BOTH = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16"])
MOSTLY = pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16], ids=["float32", "bfloat16"]
)
CASES = pytest.mark.parametrize(
    "case", PLANTED, ids=[f"{c[0].__name__}-{c[1] if isinstance(c[1], dict) else n}" for n, c in enumerate(PLANTED)]
)


@MOSTLY
@CASES
def test_planted_differences_are_found_in_their_module(case: Any, dtype: torch.dtype) -> None:
    cls, switch, where, *verdicts = case
    a, b = pair(cls, switch, dtype)
    found = dtypeguard.diff(a, b, cast(BATCHES[cls](), dtype))
    assert found.verdict == verdicts[dtype is torch.bfloat16], str(found)
    assert (found.where.name if found.where else where) == where, str(found)
    assert max(found.runs) <= 6


@pytest.mark.parametrize(
    ("cls", "switch", "told"),
    [
        (models.ResNet, {"eps": 1e-3}, "eps is 0.001, and a's is 1e-05"),
        (models.ResNet, {"padding": "reflect"}, "padding_mode is 'reflect', and a's is 'zeros'"),
        (models.GPT, lambda m: m.h[1].drop.train(), "training is True, and a's is False"),
    ],
    ids=["number", "text", "mode"],
)
def test_an_attribute_that_differs_is_told(cls: Any, switch: Any, told: str) -> None:
    found = dtypeguard.diff(*pair(cls, switch, torch.float32), BATCHES[cls]())
    assert found.where.state == (told,)


def test_a_mode_that_a_module_does_not_read_is_not_told() -> None:
    one, other = (nn.Sequential(nn.Linear(8, 8), nn.GELU(approximate=name)) for name in ("none", "tanh"))
    other.load_state_dict(one.state_dict())
    found = dtypeguard.diff(one.eval(), other.train(), torch.randn(4, 8))
    assert found.where.state == ("approximate is 'tanh', and a's is 'none'",)


@MOSTLY
@pytest.mark.parametrize("case", PLANTED[::4], ids=[c[2] + str(n) for n, c in enumerate(PLANTED[::4])])
def test_a_capture_finds_the_same(case: Any, dtype: torch.dtype, tmp_path: Any) -> None:
    cls, switch, where, *verdicts = case
    a, b = pair(cls, switch, dtype)
    batch = cast(BATCHES[cls](), dtype)
    dtypeguard.capture(a, batch, tmp_path / "a.safetensors")
    assert dtypeguard.diff(tmp_path / "a.safetensors", a, batch).verdict == "same"
    found = dtypeguard.diff(tmp_path / "a.safetensors", b, batch)
    assert found.verdict == verdicts[dtype is torch.bfloat16], str(found)
    assert (found.where.name if found.where else where) == where, str(found)
    marked = [row for row in found.rows if row.verdict == "another function"]
    assert marked == [found.where] * (found.verdict == "another function"), str(found)  # nothing behind it is blamed


# ---------------------------------------------------------------- another order is no other function


class Halves(nn.Module):
    """Runs a batch in two parts."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.inner(part) for part in x.split(1)])


def fused(model: Any) -> Any:
    """Batch norms in convolutions."""
    model = copy.deepcopy(model)
    for block in model.blocks:
        block.conv1, block.bn1 = nn.utils.fuse_conv_bn_eval(block.conv1, block.bn1), nn.Identity()
    return model


REORDERED: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "itself": (models.Llama, copy.deepcopy),
    "sdpa": (models.Llama, lambda a: switched(a, sdpa=True)),
    "chunked attention": (models.Llama, lambda a: switched(a, chunked=True)),
    "another mask": (models.Llama, lambda a: switched(a, fill=-1e9)),
    "a mask of the least number": (models.Llama, lambda a: switched(a, fill=-3e38)),
    "sdpa, one projection": (models.GPT, lambda a: switched(a, sdpa=True)),
    "split projections": (models.GPT, models.Port),
    "halves of the batch": (models.GPT, Halves),
    "halves of images": (models.ResNet, Halves),
    "channels last": (models.ResNet, lambda a: copy.deepcopy(a).to(memory_format=torch.channels_last)),
    "fused norms": (models.ResNet, fused),
    "no writing in place": (models.ResNet, lambda a: inplace(a, False)),
    "training": (models.GPT, lambda a: copy.deepcopy(a.train())),
    "training with a batch norm": (models.ResNet, lambda a: copy.deepcopy(a.train())),
    "a wrapper": (models.Cross, lambda a: nn.DataParallel(copy.deepcopy(a))),
    "an LSTM": (models.Recurrent, copy.deepcopy),
    "aot_eager": (models.GPT, lambda a: torch.compile(copy.deepcopy(a), backend="aot_eager")),
    "inductor": (models.Llama, lambda a: torch.compile(copy.deepcopy(a))),
    "function": (models.GPT, lambda a: lambda ids: a(ids)),
    "checkpoint": (models.GPT, lambda a: lambda ids: torch.utils.checkpoint.checkpoint(a, ids, use_reentrant=False)),
    "other dtype": (models.Llama, lambda a: copy.deepcopy(a).half()),
    "wider": (models.Llama, lambda a: copy.deepcopy(a).float()),
}


def switched(a: Any, **options: Any) -> Any:
    b = made(type(a), **options)
    b.load_state_dict(a.state_dict())
    return b.to(next(a.parameters()).dtype)


def inplace(model: Any, flag: bool) -> Any:
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = flag
    return model


@BOTH
@pytest.mark.parametrize("name", REORDERED)
def test_another_order_is_rounding(name: str, dtype: torch.dtype) -> None:
    cls, change = REORDERED[name]
    a = made(cls, dtype)
    state = {key: value.clone() for key, value in a.state_dict().items()}
    b, batch = change(a), cast(BATCHES[cls](), dtype)
    drawn = torch.get_rng_state()
    found = dtypeguard.diff(a, b.to(dtype) if name == "split projections" else b, batch)
    assert found.verdict != ANOTHER, str(found)
    assert torch.equal(drawn, torch.get_rng_state())
    assert all(torch.equal(value, a.state_dict()[key]) for key, value in state.items())


def test_modules_are_matched_by_rows_of_weights() -> None:
    gpt = made(models.GPT)
    found = dtypeguard.diff(gpt, models.Port(gpt).eval(), ids())
    rows = {row.name: row for row in found.rows}
    assert rows["blocks.0.attention.key"].a == ("h.0.attn.c_attn",)
    assert rows["blocks.0.attention.key"].how == "rows of weights"
    assert rows["blocks.2.down"].a == ("h.2.proj",)
    other = dtypeguard.diff(models.Port(gpt).eval(), gpt, ids())
    fused = next(row for row in other.rows if row.name == "h.1.attn.c_attn")
    assert fused.a == tuple(f"blocks.1.attention.{name}" for name in ("query", "key", "value"))


@pytest.mark.parametrize("narrow", ["fused", "split"])
@pytest.mark.parametrize("first", ["fused", "split"])
def test_rows_of_weights_may_be_rounded(narrow: str, first: str) -> None:
    """A port in bfloat16 of a model in float32, which computes three projections in one, is the same function."""
    gpt = made(models.GPT)
    sides = {"fused": gpt, "split": models.Port(gpt).eval()}
    sides[narrow] = copy.deepcopy(sides[narrow]).bfloat16()
    second = next(name for name in sides if name != first)
    assert dtypeguard.diff(sides[first], sides[second], ids()).verdict != ANOTHER


def test_what_cannot_be_matched_is_a_region_between_what_is() -> None:
    gpt = made(models.GPT)
    found = dtypeguard.diff(gpt, models.Port(gpt, gelu="none").eval(), ids())
    assert found.verdict == ANOTHER
    assert found.where is not None
    assert found.where.place == "blocks.1, before blocks.1.down(input)"
    assert "diff_models.py" in found.where.site
    swapped = dtypeguard.diff(gpt, models.Port(gpt, swap=("key", "query", "value")).eval(), ids())
    assert swapped.where is not None
    assert swapped.where.name == "blocks.0.attention"


NAMES = {
    "patterns": {"h.*": "blocks.*", "h.*.ln_1": "blocks.*.before", "h.*.fc": "blocks.*.up"},
    "a function": lambda name: f"blocks.{name[2]}.before" if name.endswith("ln_1") else None,
}  # fmt: skip


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_names_are_told(names: Any) -> None:
    gpt = made(models.GPT)
    found = dtypeguard.diff(gpt, models.Port(gpt).eval(), ids(), names=names)
    assert found.verdict == "rounding"
    assert next(row for row in found.rows if row.name == "blocks.1.before").how == "names"


# ---------------------------------------------------------------- compiled, backward, tokens


def wrong(graph: Any, examples: Any) -> Any:
    """A compiler that takes every GELU for a ReLU."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and "gelu" in str(node.target):
            node.target = lambda x, **options: x.relu()
    graph.recompile()
    return graph.forward


def test_a_module_that_a_compiler_gets_wrong() -> None:
    a = made(models.GPT)
    found = dtypeguard.diff(a, torch.compile(copy.deepcopy(a), backend=wrong), ids())
    assert (found.verdict, found.where and found.where.name) == (ANOTHER, "h.0.act")
    assert found.error_b > 1e-3 > found.error_a
    torch._dynamo.reset()


class Straight(torch.autograd.Function):
    """A GELU whose backward is that of the identity."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x, approximate="tanh")

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Act(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Straight.apply(x)  # type: ignore[no-any-return,no-untyped-call]


def loss(out: torch.Tensor) -> torch.Tensor:
    return out.float().logsumexp(-1).mean() + out.float()[..., 0].mean()


@BOTH
def test_backwards_that_part(dtype: torch.dtype) -> None:
    a = made(models.GPT, dtype)
    b = copy.deepcopy(a)
    b.h[1].act = Act()
    found = dtypeguard.diff(a, b, ids(), loss=loss)
    assert found.verdict == ANOTHER
    assert found.where is not None
    assert found.where.place == "the backward of h.1.act"
    parted = {row.name for row in found.gradients if row.verdict == ANOTHER}
    assert "h.1.fc.weight" in parted
    assert "h.2.fc.weight" not in parted
    assert "h.1.proj.weight" not in parted
    assert a.head.weight.grad is None


@BOTH
@pytest.mark.parametrize("change", [lambda a: switched(a, sdpa=True), models.Port], ids=["sdpa", "port"])
def test_backwards_in_another_order_are_rounding(change: Any, dtype: torch.dtype) -> None:
    a = made(models.GPT, dtype)
    found = dtypeguard.diff(a, change(a).to(dtype), ids(), loss=lambda out, batch: loss(out))
    assert found.verdict in ("rounding", "a rounds worse", "b rounds worse"), str(found)
    assert len(found.gradients) > 35
    assert all(row.verdict != ANOTHER for row in found.gradients)


def logprobs(model: nn.Module, temperature: float = 1.0) -> list[list[float]]:
    tokens = ids()
    with torch.no_grad():
        said = (model(tokens).double() / temperature).log_softmax(-1)[:, :-1]
    return said.gather(-1, tokens[:, 1:, None])[..., 0].tolist()  # type: ignore[no-any-return]


ENGINES: dict[str, tuple[Callable[[Any], list[list[float]]], set[str]]] = {
    "the same": (logprobs, {"rounding"}),
    "with a first one": (lambda a: [[None, *row] for row in logprobs(a)], {"rounding"}),  # type: ignore[list-item]
    "sdpa": (lambda a: logprobs(switched(a, sdpa=True)), {"rounding", WORSE, "a rounds worse"}),
    "bfloat16": (lambda a: logprobs(copy.deepcopy(a).bfloat16()), {"rounding", WORSE}),
    "temperature": (lambda a: logprobs(a, 1.2), {ANOTHER}),
    "shifted": (lambda a: [row[1:] + row[:1] for row in logprobs(a)], {ANOTHER}),
}


@BOTH
@pytest.mark.parametrize("name", ENGINES)
def test_log_probabilities_of_an_engine(name: str, dtype: torch.dtype, tmp_path: Any) -> None:
    make, verdicts = ENGINES[name]
    a = made(models.GPT, dtype)
    (tmp_path / "engine.json").write_text(json.dumps(make(a)))
    found = dtypeguard.diff(a, tmp_path / "engine.json", ids())
    assert found.verdict in verdicts, str(found)
    assert len(found.tokens) == 2 * 47
    engine, own = (torch.tensor([row[-47:] for row in rows]).double() for rows in (make(a), logprobs(a)))
    assert found.distance == pytest.approx(float((engine - own).norm() / own.norm()), rel=0.01, abs=1e-6)


def test_tokens_that_are_chosen_otherwise() -> None:
    a = made(models.GPT)
    same = dtypeguard.diff(a, switched(a, sdpa=True), ids())
    assert len(same.tokens) == 2 * 47
    assert all(token.first_a == token.first_b for token in same.tokens)
    other = dtypeguard.diff(a, switched(a, shift=9), ids())
    first = next(token for token in other.tokens if token.first_a != token.first_b)
    assert not first.coin
    assert "which rounding does not explain" in str(other)
    tie = copy.deepcopy(a)
    with torch.no_grad():
        best = int(a(ids())[0, 5].argmax())
        tie.head.weight[(best + 1) % 50] = tie.head.weight[best]
    low = copy.deepcopy(tie).bfloat16()
    found = dtypeguard.diff(tie, low, ids())
    assert any(token.coin for token in found.tokens)


# ---------------------------------------------------------------- bad input


class Returns(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*self.shape) + x.mean()


def linear() -> nn.Module:
    return nn.Linear(4, 4)


BAD: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a batch beside each model": (
        lambda tmp: dtypeguard.diff((linear(), X), (linear(), X)), TypeError,  # type: ignore[call-arg]
        r"diff: a is a tuple: pass the model itself, and the batch behind it, \(a, b, batch\)",
    ),
    "names that are no names": (
        lambda tmp: dtypeguard.diff(linear(), linear(), X, names="0"), TypeError,  # type: ignore[arg-type]
        "names is a dict of patterns, .* or a function, not '0'",
    ),
    "a function of names": (
        lambda tmp: dtypeguard.diff(nn.Sequential(linear()), nn.Sequential(linear()), X, names=len),  # type: ignore
        TypeError, "names gives 1 for a's module '0': return a name of b's, or None",
    ),
    "a class": (lambda tmp: dtypeguard.diff(nn.Linear, linear(), X), TypeError, "diff takes a model, not the class"),
    "no program": (lambda tmp: dtypeguard.diff(linear(), 3, X), TypeError, "takes a model or a function, .* an int"),
    "a batch that only a takes": (
        lambda tmp: dtypeguard.diff(linear(), nn.Linear(5, 4), X), dtypeguard.CompareError,
        "b, this Linear, does not run on the batch: RuntimeError",
    ),
    "a batch that is none of b's": (
        lambda tmp: dtypeguard.diff(lambda x: x, linear(), {"x": X}), TypeError,
        r"diff: b: Linear.forward\(.* does not take this batch: missing a required argument: 'input'; a dict is read",
    ),
    "a batch of another dtype": (
        lambda tmp: dtypeguard.diff(linear().bfloat16(), linear().bfloat16(), X), dtypeguard.CompareError,
        r"its parameters are bfloat16, and the batch is float32. What bfloat16 costs .* dtypeguard.compare.model,",
    ),
    "a batch": (lambda tmp: dtypeguard.diff(linear(), linear(), 3), TypeError, "`batch` is an int: pass a tensor"),
    "outputs": (
        lambda tmp: dtypeguard.diff(linear(), Returns(7), X), dtypeguard.CompareError,
        r"nothing in common\n  a, Linear, returns float32\[2, 4\]\n  b, Returns, returns float32\[7\]",
    ),
    "names": (
        lambda tmp: dtypeguard.diff(nn.Sequential(linear()), nn.Sequential(linear()), X, names={"0": "00"}),
        dtypeguard.CompareError, r"'00' for a's module '0', and b has no such module \(did you mean '0'\?\)",
    ),
    "names of a": (
        lambda tmp: dtypeguard.diff(nn.Sequential(linear()), nn.Sequential(linear()), X, names={"x": "0"}),
        dtypeguard.CompareError, "names has 'x', and a has no such module",
    ),
    "a loss": (lambda tmp: dtypeguard.diff(linear(), linear(), X, loss=3), TypeError, "`loss` is an int"),
    "a loss of many": (
        lambda tmp: dtypeguard.diff(linear(), linear(), X, loss=lambda out: out), TypeError, "must return one number",
    ),
    "an option": (
        lambda tmp: dtypeguard.diff(linear(), linear(), X, name={}), TypeError, "no option name=: did you mean names=",
    ),
    "no file": (lambda tmp: dtypeguard.diff("no.safetensors", linear(), X), FileNotFoundError, "no.safetensors"),
    "a foreign file": (lambda tmp: dtypeguard.diff(foreign(tmp), linear(), X), ValueError, "is no capture: write one"),
    "a checkpoint": (
        lambda tmp: dtypeguard.diff(linear(), checkpoint(tmp), X), ValueError,
        "diff: b, .*weights.pt, is a checkpoint of torch.save, and no capture: write one",
    ),
    "a cut file": (lambda tmp: dtypeguard.diff(cut(tmp), linear(), X), ValueError, "is cut, or no capture"),
    "a newer file": (lambda tmp: dtypeguard.diff(newer(tmp), linear(), X), ValueError, "is of format 99"),
    "a damaged file": (lambda tmp: dtypeguard.diff(damaged(tmp), linear(), X), ValueError, "is damaged: its values"),
    "a batch of another shape": (
        lambda tmp: dtypeguard.diff(captured(tmp), linear(), X[:1]), dtypeguard.CompareError,
        r"input of the batch is \[1, 4\], and the capture was made with \[2, 4\]",
    ),
    "another batch": (
        lambda tmp: dtypeguard.diff(captured(tmp), linear(), X + 1), dtypeguard.CompareError,
        "input of the batch is not what the capture was made with",
    ),
    "a loss of a capture": (
        lambda tmp: dtypeguard.diff(captured(tmp), linear(), X, loss=lambda out: out.sum()), ValueError, "no gradients",
    ),
    "too few probabilities": (
        lambda tmp: dtypeguard.diff(made(models.GPT), probabilities(tmp, [[0.0]]), ids()), dtypeguard.CompareError,
        "the batch has 2 sequences of 48 tokens, and the file 1 lists of 1 numbers",
    ),
    "no probabilities": (
        lambda tmp: dtypeguard.diff(made(models.GPT), probabilities(tmp, {"a": 1}), ids()), ValueError,
        "has no log probabilities",
    ),
    "no values": (
        lambda tmp: dtypeguard.diff(nn.Linear(4, 4, device="meta"), linear(), X), dtypeguard.CompareError,
        "a, this Linear, is on meta",
    ),
    "no logits": (
        lambda tmp: dtypeguard.diff(linear(), probabilities(tmp, [[0.0]]), X), dtypeguard.CompareError, "need logits",
    ),
}  # fmt: skip
X = torch.ones(2, 4)


def damaged(tmp: Any) -> Any:
    """With one bit of the last number turned."""
    path = captured(tmp)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return path


def captured(tmp: Any) -> Any:
    torch.manual_seed(0)
    dtypeguard.capture(linear(), X, tmp / "a.safetensors")
    return tmp / "a.safetensors"


def checkpoint(tmp: Any) -> Any:
    torch.save(linear().state_dict(), tmp / "weights.pt")
    return tmp / "weights.pt"


def foreign(tmp: Any) -> Any:
    save_file({"weight": torch.zeros(3)}, tmp / "foreign.safetensors")
    return tmp / "foreign.safetensors"


def cut(tmp: Any) -> Any:
    path = captured(tmp)
    path.write_bytes(path.read_bytes()[:-40])
    return path


def newer(tmp: Any) -> Any:
    path = captured(tmp)
    path.write_bytes(path.read_bytes().replace(b'\\"format\\": 1,', b'\\"format\\":99,'))
    return path


def probabilities(tmp: Any, data: Any) -> Any:
    (tmp / "engine.json").write_text(json.dumps(data))
    return tmp / "engine.json"


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, tmp_path: Any) -> None:
    call, error, text = BAD[name]
    with pytest.raises(error, match=text):
        call(tmp_path)


# ---------------------------------------------------------------- traps


class Trap(nn.Module):
    """Writes to what it got, keeps a cache, returns tuples in dicts, casts inside, and is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.act = nn.Linear(8, 8), nn.ReLU(inplace=True)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor, cache: dict[str, Any] | None = None) -> dict[str, Any]:
        h = self.lin(x)
        before = h
        h = self.act(h)
        h = self.lin(h)
        before += 1
        self.seen += 1
        cache = {} if cache is None else cache
        cache["h"] = h
        noise = torch.rand_like(h)
        return {"pair": (h.half().float(), before.double()), "noise": noise, "n": self.seen.clone()}


def test_traps() -> None:
    torch.manual_seed(0)
    a = Trap()
    found = dtypeguard.diff(a, copy.deepcopy(a), torch.randn(4, 8))
    assert found.verdict == "same"
    assert float(a.seen) == 0
    b = copy.deepcopy(a)
    b.act = nn.LeakyReLU(1e-6, inplace=True)
    found = dtypeguard.diff(a, b, torch.randn(4, 8))
    assert (found.verdict, found.where and found.where.name) == (ANOTHER, "act")


class Asserts(nn.Module):
    """Asks for its dtype, in inference mode, and writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)

    @torch.inference_mode()
    def forward(self, x: torch.Tensor) -> Any:
        h = self.act(self.lin(x).float())
        assert h.dtype is torch.float32
        return h, h.to_sparse()


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x)


def normed() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(copy.deepcopy(PLAIN))


def encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


PLAIN = nn.Linear(4, 4)
ALIKE: dict[str, tuple[Any, Any]] = {
    "one that asks for float32": (Asserts(), copy.deepcopy),
    "complex results": (Spectrum(), copy.deepcopy),
    "three arguments that are one": (encoder(), copy.deepcopy),
    "the very same": (PLAIN, lambda a: a),
    "weights of other parameters": (PLAIN, lambda a: normed()),
}


@pytest.mark.parametrize("name", ALIKE)
def test_two_that_are_alike(name: str) -> None:
    a, change = ALIKE[name]
    assert dtypeguard.diff(a, change(a), torch.rand(2, 3, 4)).verdict in (
        "same",
        WORSE if "weights" in name else "same",
    )


def test_what_refuses_float64_is_told() -> None:
    class Refuses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.lin.weight.dtype is torch.float64:
                raise RuntimeError("no kernel for Double")
            return self.lin(x)  # type: ignore[no-any-return]

    a = Refuses().bfloat16()
    found = dtypeguard.diff(a, copy.deepcopy(a), X.bfloat16())
    assert found.verdict == "same"
    assert "the reference is float32" in str(found)


def test_two_dtypes_are_counted_in_roundings_of_their_own() -> None:
    a, b = (nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 4)) for _ in "ab")
    b.load_state_dict(a.state_dict())
    found = dtypeguard.diff(a, b.bfloat16(), torch.arange(16)[None])
    assert all(max(row.roundings) < 8 for row in found.rows)
    assert "a computes in float32 and b in bfloat16: the roundings of each are to its own" in str(found)
    assert found.verdict in ("rounding", "b rounds worse"), "the finer one is never worse"


def test_the_text_the_page_and_the_data(tmp_path: Any) -> None:
    a, b = pair(models.Llama, {"eps": 1e-2}, torch.float32)
    found = dtypeguard.diff(a, b, ids(), loss=loss)
    assert all(len(line) <= 80 for line in str(found).splitlines())
    assert str(found).startswith("another function: first in layers.1.norm1\n  in float64 ")
    page = found.to_html(tmp_path / "page.html")
    assert "first: another function" in page
    assert "layers.1.norm1" in page
    assert "█" in page
    data = found.to_dict()
    assert data["kind"] == "diff"
    assert data["where"]["name"] == "layers.1.norm1"
    json.dumps(data)


COMMAND = """
import torch
from torch import nn

def make(approximate="none"):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(approximate))

def port():
    return make("tanh")

def batch():
    return torch.linspace(-1, 1, 32).reshape(4, 8)

def loss(out):
    return out.square().mean()
"""


def test_the_command(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from dtypeguard.__main__ import main

    (tmp_path / "parting_models.py").write_text(COMMAND)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    batch = ["--batch", "parting_models:batch"]
    assert main(["diff", "parting_models:make", "parting_models:make", *batch, "--loss", "parting_models:loss"]) == 0
    assert (
        main(["diff", "parting_models:make", "parting_models:port", *batch, "--html", "p.html", "--json", "p.json"])
        == 1
    )
    assert capsys.readouterr().out.endswith("exit status 1: another function\n")
    assert (tmp_path / "p.html").exists()
    assert json.loads((tmp_path / "p.json").read_text())["where"]["name"] == "1"
    assert main(["diff", "parting_models:make", *batch, "--capture", "a.safetensors"]) == 0
    assert main(["diff", "parting_models:make", *batch, "--against", "a.safetensors"]) == 0
    assert main(["diff", "parting_models:port", *batch, "--against", "a.safetensors"]) == 1
    for wrong in (["parting_models:make"], ["parting_models:make", "parting_models:port", "--capture", "x"]):
        with pytest.raises(SystemExit) as stopped:
            main(["diff", *wrong, *batch])
        assert stopped.value.code == 2
    with pytest.raises(SystemExit):
        main(["diff", "parting_models:Missing", "--against", "gone.safetensors"])
    assert "cannot read gone.safetensors: no such file" in capsys.readouterr().err


def test_the_fixture(dtype_diff: Any) -> None:
    a, b = pair(models.GPT, {"eps": 1e-6}, torch.float32)
    assert dtype_diff(switched(a, sdpa=True), a, ids()).verdict == "rounding"
    with pytest.raises(
        pytest.fail.Exception, match=r"a is the original, b the port\nanother function: first in h.1.ln_1"
    ):
        dtype_diff(b, a, ids())


class Cut(nn.Module):
    """A branch beside a stem, of which one may get no gradient."""

    def __init__(self, cut=""):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.branch, self.head, self.cut = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 2), cut

    def forward(self, x):
        stem = self.stem(x).detach() if self.cut == "stem" else self.stem(x)
        branch = self.branch(stem)
        return self.head(stem + (branch.detach() if self.cut == "branch" else branch))


@pytest.mark.parametrize("cut", ["stem", "branch"])
@pytest.mark.parametrize("turn", [1, -1])
def test_a_gradient_that_one_program_lacks_is_another_function(cut, turn):
    found = dtypeguard.diff(*(Cut(), Cut(cut))[::turn], torch.randn(4, 8), loss=lambda out: out.square().mean())
    assert (found.verdict, found.where.name) == ("another function", "")
    has, lacks = "ab"[::turn]
    assert f"gradients: {lacks} has none of {cut}.weight, {cut}.bias, and {has} has" in str(found)
    assert "gradients of one of the two end there" in str(found)
    assert {row.name for row in found.gradients if row.only == has} == {f"{cut}.weight", f"{cut}.bias"}


class Spectral(nn.Module):
    """Complex weights, of which `Module.to` would drop the imaginary parts."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(9, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.weight)


def test_imaginary_parts_of_parameters_are_kept_in_float64():
    a, b, x = Spectral(), Spectral(), torch.randn(8, 16)
    assert dtypeguard.diff(a, b, x).verdict == "same"
    with torch.no_grad():
        b.weight.copy_(b.weight.real)
    assert dtypeguard.diff(a, b, x).verdict == "another function"
    assert dtypeguard.compare(a, x, region=torch.bfloat16).error < 1e-6


class Functional(nn.Module):
    """Uses the weights of a layer that it never calls, as a mixer of Mamba does those of its convolution."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(torch.tanh(nn.functional.linear(x, self.inner.weight, self.inner.bias)))


def test_weights_of_a_module_that_is_never_called_are_those_of_the_module_around_it():
    torch.manual_seed(0)
    a, x = Functional(), torch.randn(8, 16)
    assert dtypeguard.diff(a, copy.deepcopy(a).bfloat16(), x).verdict == "rounding"
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.inner.weight[0] += 0.1
    found = dtypeguard.diff(a, b, x)
    assert found.verdict == "another function"
    assert found.where.state[0].startswith("inner.weight differs by")


class Attends(nn.Module):
    def __init__(self, name, attention):
        super().__init__()
        self.name = name
        setattr(self, name, attention)

    def forward(self, x):
        return getattr(self, self.name)(x, x, x, need_weights=False)[0]


def test_calls_of_one_module_that_stand_for_several_are_told_apart():
    def acts(first: nn.Module, second: nn.Module) -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), first, nn.Linear(4, 4), second)

    one = nn.GELU("tanh")
    found = dtypeguard.diff(acts(nn.GELU(), nn.GELU()), acts(one, one), torch.randn(2, 4))
    assert {row.place for row in found.rows if row.name == "1"} == {"1 (call 1)", "1 (call 2)"}
    assert {row.a: row.call for row in found.rows if row.name == "1"} == {("1",): 1, ("3",): 2}
    assert "1 (call 2)" in str(found)


def test_a_module_that_calls_none_is_matched_by_its_weights():
    attention, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 3, 8)
    found = dtypeguard.diff(Attends("attn", attention), Attends("mixer", copy.deepcopy(attention)), x)
    assert found.verdict == "same"
    assert {row.name: row.how for row in found.rows}["mixer"] == "weights"


class Norm(nn.Module):
    """A root mean square, in float32 or in the dtype of what comes in."""

    def __init__(self, wide):
        super().__init__()
        self.wide = wide

    def forward(self, x):
        y = x.float() if self.wide else x
        total = y.square().sum(1) if self.wide else y.new_zeros(len(x))
        for column in () if self.wide else y.T:
            total = total + column**2
        return (y * (total / y.shape[1] + 1e-6).rsqrt()[:, None]).to(x.dtype)


@pytest.mark.parametrize(("wide", "verdict"), [(True, "rounding"), (False, "b rounds worse")])
def test_of_two_dtypes_the_coarser_one_rounds_worse_where_it_need_not(wide, verdict):
    torch.manual_seed(0)
    a, b = (nn.Sequential(nn.Linear(64, 64), Norm(one), nn.Linear(64, 8)) for one in (True, wide))
    b.load_state_dict(a.state_dict())
    found = dtypeguard.diff(a, b.bfloat16(), torch.randn(32, 64))
    assert found.verdict == verdict
    assert wide or found.where.name == "1"


def test_a_batch_is_cast_for_the_program_of_the_other_dtype():
    a = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    found = dtypeguard.diff(a, copy.deepcopy(a).bfloat16(), torch.randn(16, 8))
    assert found.verdict == "rounding"
    assert "b got the batch in bfloat16" in found.notes
    assert found.error_b == pytest.approx(dtypeguard.compare(a, torch.randn(16, 8), dtype=torch.bfloat16).error, rel=2)


SET_ON_IT = {
    "a closure": lambda m: lambda x: m.down(m.up(x).relu()),
    "a default": lambda m: lambda x, own=m: own.down(own.up(x).relu()),
    "the forward before": lambda m: (lambda before: lambda x: before(x))(m.forward),
}


@pytest.mark.parametrize("made", SET_ON_IT.values(), ids=SET_ON_IT)
def test_a_forward_that_was_set_on_a_module_computes_with_the_copy_s_modules(made):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            return self.down(self.up(x).relu())

    torch.manual_seed(0)
    a = nn.Sequential(Block(), nn.Linear(8, 2))
    b, x = copy.deepcopy(a), torch.randn(4, 8)
    b[0].forward = made(b[0])
    found = dtypeguard.diff(a, b, x, loss=lambda out: out.square().mean())
    assert found.verdict == "same"
    assert found.unmatched == ([], [])
    errors = [dtypeguard.compare(model, x, dtype=torch.bfloat16).error for model in (a, b)]
    assert errors[0] == errors[1]
    assert b[0].up.weight.grad is None
