"""Real bugs of public projects, each cut down to the boundary where it can be seen.

Strict mode names the argument, both dtypes and the module; lenient mode returns what the program repaired by
hand returns, or refuses and says what to write instead.
"""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import BFloat16, Bool, Float, Float16, Float32, Int64
from support import BF16, F16, F32, F64
from torch import Tensor, nn

import dtypeguard
from dtypeguard import CastError, CastWarning, DeviceError, DtypeError, enforce, guard

I16, I64, U8, BOOL = torch.int16, torch.int64, torch.uint8, torch.bool


@dataclasses.dataclass(frozen=True)
class Bug:
    """One bug: how to build it, what strict mode must say, what lenient mode must do."""

    source: str
    make: Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]
    argument: str
    actual: Any
    expected: Any
    where: str  # the path of the module, or the function
    repair: Callable[..., Any] | None = None  # the call as a careful programmer writes it; None: nothing may be cast
    advice: str = ""
    others: tuple[str, ...] = ()  # further arguments that are wrong in the same call
    beside: tuple[str, ...] = ()  # side inputs of the same call that are wrong too
    depth: str = "auto"
    said: str | None = None  # what torch says without a guard; None: nothing at all, the bug is silent


class Encoder(nn.Module):
    """An image encoder that somebody keeps in float32 inside a half pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 2, 3)

    def forward(self, pixels: Float[Tensor, "batch 3 h w"]):
        return self.stem(pixels).tanh()


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"stem": nn.Conv2d(3, 2, 1), "norm": nn.BatchNorm2d(2)})

    def forward(self, image):
        return self.layers["norm"](self.layers["stem"](image))


class Waves(nn.Module):
    """Has no parameters, and so a dtype of its own choice."""

    def forward(self, steps):
        return torch.sin(steps[:, None] * torch.arange(1, 5, dtype=F32))


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.waves = Waves()
        self.embed = nn.ModuleList([nn.Linear(4, 3), nn.SiLU()])
        self.out = nn.Linear(3, 3)

    def forward(self, latents, steps):
        shift = self.waves(steps)
        for layer in self.embed:
            shift = layer(shift)
        return self.out(latents) + shift


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 2)

    def forward(self, counts: Float32[Tensor, "cell gene"]) -> Float32[Tensor, "cell latent"]:
        return self.project(counts.log1p())


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: Float[Tensor, "b t 4"], bias: Float[Tensor, "t t"]):
        return F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1), attn_mask=bias)


class Control(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, hidden):
        return F.silu(self.norm(hidden))


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.latent, self.text, self.time = nn.Linear(3, 4), nn.Linear(5, 4), nn.Embedding(9, 4)

    def forward(self, *, latents, step, text, extra):
        return self.latent(latents) + self.text(text) + self.time(step) + self.text(extra["pooled"])


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 1, batch_first=True)

    def forward(self, x: Float[Tensor, "b t 4"], padding: Bool[Tensor, "b t"]):
        return self.attention(x, x, x, key_padding_mask=padding)[1]


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, 2)

    def forward(self, words, state=None):
        return self.rnn(words, state)[0]


class Messages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(2, 2)

    def forward(self, nodes: Float[Tensor, "n 2"], edges: Int64[Tensor, "2 e"]) -> Float[Tensor, "n 2"]:
        out = torch.zeros_like(nodes)
        return out.scatter_add(0, edges[1][:, None].expand(-1, 2), self.message(nodes[edges[0].long()]))


def td_loss(value: Float32[Tensor, "b"], target: Float32[Tensor, "b"]) -> Float32[Tensor, ""]:
    return F.huber_loss(value, target)


def squared_error(pred: Float32[Tensor, "b"], target: Float32[Tensor, "b"]) -> Float32[Tensor, ""]:
    return (pred - target).square().mean()


def matching_cost(logits: Float32[Tensor, "q p"], masks: Float32[Tensor, "q p"]) -> Float32[Tensor, "q"]:
    return F.binary_cross_entropy_with_logits(logits, masks, reduction="none").sum(-1)


def masked_mean(x: Float[Tensor, "n"], hidden: Bool[Tensor, "n"]) -> Float[Tensor, ""]:
    return (x * ~hidden).sum() / (~hidden).sum()


def rand(*shape, dtype=F32):
    return torch.rand(shape).to(dtype)


BUGS = {
    "half pixels into a float32 encoder": Bug(
        "huggingface/diffusers#7854",
        lambda: (Encoder(), (rand(1, 3, 4, 4, dtype=F16),), {}),
        *("pixels", F16, F32, "Encoder"),
        repair=lambda model, pixels: model(pixels.float()),
        said="Input type",
    ),
    "float32 images into a half detector": Bug(
        "ultralytics/yolov3#1085",
        lambda: (Detector().half().eval(), (rand(1, 3, 4, 4),), {}),
        *("image", F32, F16, "Detector"),
        repair=lambda model, image: model(image.half()),
        said="Input type",
    ),
    "float32 time embedding, born inside, into a half layer": Bug(
        "huggingface/diffusers#234",
        lambda: (Denoiser().half(), (rand(2, 3, dtype=F16),), {"steps": torch.tensor([1, 7])}),
        *("input", F32, F16, "Denoiser.embed.0"),
        repair=lambda model, latents, steps: model.out(latents) + F.silu(model.embed[0](model.waves(steps).half())),
        depth="all",
        said="same dtype",
    ),
    "float64 features from NumPy": Bug(
        "theislab/scarches#195",
        lambda: (Cells(), (torch.from_numpy(rand(3, 4).numpy().astype("float64")),), {}),
        *("counts", F64, F32, "Cells"),
        repair=lambda model, counts: model(counts.float()),
        said="same dtype",
    ),
    "a float16 mask in a bfloat16 model": Bug(
        "Comfy-Org/ComfyUI#8118",
        lambda: (Attention().to(BF16), (rand(1, 2, 4, dtype=BF16),), {"bias": torch.full((2, 2), -6e4).triu(1).half()}),
        *("bias", F16, BF16, "Attention"),
        repair=lambda model, x, bias: model(x, bias.to(BF16)),
        said="attn_mask dtype",
    ),
    "float32 activations into a half norm": Bug(
        "Mikubill/sd-webui-controlnet#2147",
        lambda: (Control().half(), (rand(1, 4, 3),), {}),
        *("hidden", F32, F16, "Control"),
        repair=lambda model, hidden: model(hidden.half()),
        said="mixed dtype",
    ),
    "keyword arguments of several dtypes": Bug(
        "yifan123/flow_grpo#147",
        lambda: (
            Flow().half(),
            (),
            {
                "latents": rand(1, 3),
                "step": torch.tensor([4]),
                "text": rand(1, 5, dtype=F16),
                "extra": {"pooled": rand(1, 5), "ids": torch.tensor([1])},
            },
        ),
        *("latents", F32, F16, "Flow"),
        repair=lambda model, latents, step, text, extra: model(
            latents=latents.half(), step=step, text=text, extra={"pooled": extra["pooled"].half()}
        ),
        beside=("extra['pooled']",),  # the text is half: so these are side inputs, which two layers refuse
        said="same dtype",
    ),
    "a 0/1 padding mask in float, which is added": Bug(
        "pytorch/pytorch#92554",
        lambda: (Padded(), (rand(1, 3, 4), torch.tensor([[0.0, 0.0, 1.0]])), {}),
        *("padding", F32, BOOL, "Padded"),
        advice=r"padding != 0",
    ),
    "a float64 target that fails in backward": Bug(
        "callummcdougall/ARENA_3.0#203",
        lambda: (td_loss, (rand(3).requires_grad_(), rand(3, dtype=F64)), {}),
        *("target", F64, F32, "td_loss"),
        repair=lambda loss, value, target: loss(value, target.float()),
    ),
    "a float64 target that makes the loss float64": Bug(
        "pytorch/pytorch#36553",
        lambda: (squared_error, (rand(3), rand(3, dtype=F64)), {}),
        *("target", F64, F32, "squared_error"),
        repair=lambda loss, pred, target: loss(pred, target.float()),
    ),
    "a matching cost that overflows in half": Bug(
        "huggingface/transformers#25938",
        lambda: (matching_cost, (torch.full((1, 70000), -3.0).half(), torch.ones(1, 70000).half()), {}),
        *("logits", F16, F32, "matching_cost"),
        repair=lambda cost, logits, masks: cost(logits.float(), masks.float()),
        others=("masks",),
    ),
    "a recurrent state on another device": Bug(
        "pytorch/pytorch#10658",
        lambda: (Tagger().to("meta"), (rand(2, 1, 3).to("meta"),), {"state": (rand(1, 1, 2), rand(1, 1, 2))}),
        *("state[0]", torch.device("cpu"), torch.device("meta"), "Tagger"),
        repair=lambda model, words, state: model(words, tuple(part.to("meta") for part in state)),
        others=("state[1]",),
        said="same device",
    ),
    "a 16 bit edge index": Bug(
        "pyg-team/pytorch_geometric#5087",
        lambda: (Messages(), (rand(3, 2), torch.tensor([[0, 1], [2, 0]], dtype=I16)), {}),
        *("edges", I16, I64, "Messages"),
        repair=lambda model, nodes, edges: model(nodes, edges.long()),
        said="int32/int64",
    ),
    "the opposite of a uint8 mask": Bug(
        "pytorch/pytorch#24180",
        lambda: (masked_mean, (rand(4), torch.tensor([1, 1, 0, 0], dtype=U8)), {}),
        *("hidden", U8, BOOL, "masked_mean"),
        advice=r"hidden != 0",
    ),
}


def build(bug, mode):
    torch.manual_seed(0)
    program, args, kwargs = bug.make()
    if isinstance(program, nn.Module):
        return guard(program, mode=mode, depth=bug.depth), args, kwargs
    return enforce(mode=mode)(program), args, kwargs


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_there_without_a_guard(name):
    bug = BUGS[name]
    torch.manual_seed(0)
    program, args, kwargs = bug.make()
    if bug.said is None:
        program(*args, **kwargs)
    else:
        with pytest.raises(RuntimeError, match=bug.said):
            program(*args, **kwargs)


@pytest.mark.parametrize("name", BUGS)
def test_strict_mode_names_the_argument_both_sides_and_the_place(name):
    bug = BUGS[name]
    program, args, kwargs = build(bug, "strict")
    kind = DeviceError if isinstance(bug.expected, torch.device) else DtypeError
    with pytest.raises(kind) as caught:
        program(*args, **kwargs)
    error = caught.value
    assert (error.argument, error.actual, error.expected) == (bug.argument, bug.actual, bug.expected)
    assert (error.module_path if isinstance(program, nn.Module) else error.function) == bug.where
    assert len(error.violations) == 1 + len(bug.others)
    assert all(f"`{other}`" in str(error) for other in bug.others)
    assert all(f"{other} = f32" in str(error) for other in bug.beside)
    first, text = str(error).splitlines()[0], str(error)
    for fact in (bug.argument, bug.actual, bug.expected):
        assert str(fact).removeprefix("torch.") in first
    assert bug.where in text
    assert "test_zoo.py:" in text


@pytest.mark.parametrize("name", [name for name, bug in BUGS.items() if bug.repair])
def test_lenient_mode_returns_what_the_program_repaired_by_hand_returns(name):
    bug = BUGS[name]
    torch.manual_seed(0)
    by_hand, args, kwargs = bug.make()
    expected = bug.repair(by_hand, *args, **kwargs)
    program, args, kwargs = build(bug, "lenient")
    with pytest.warns(CastWarning) as told:
        got = program(*args, **kwargs)
    assert got.dtype is expected.dtype
    assert got.device == expected.device
    assert got.is_meta or torch.equal(got, expected)
    assert sorted(record.argument for record in dtypeguard.casts()) == sorted((bug.argument, *bug.others, *bug.beside))
    assert len(told) == 1 + len(bug.others) + len(bug.beside)


@pytest.mark.parametrize("name", [name for name, bug in BUGS.items() if not bug.repair])
def test_lenient_mode_refuses_what_no_cast_can_mend_and_says_what_to_write(name):
    bug = BUGS[name]
    program, args, kwargs = build(bug, "lenient")
    with pytest.raises(CastError, match=bug.advice) as caught:
        program(*args, **kwargs)
    assert (caught.value.argument, caught.value.actual, caught.value.expected) == (
        bug.argument,
        bug.actual,
        bug.expected,
    )
    assert not dtypeguard.casts()


def test_a_float64_target_fails_at_the_loss_and_not_in_backward():
    program, args, kwargs = build(BUGS["a float64 target that fails in backward"], "lenient")
    with pytest.raises(RuntimeError, match="Found dtype Double but expected Float"):
        td_loss(*args, **kwargs).backward()
    with pytest.warns(CastWarning):
        program(*args, **kwargs).backward()
    assert args[0].grad.dtype is F32


def test_a_time_embedding_born_inside_is_only_noted_at_the_boundary():
    bug = BUGS["float32 time embedding, born inside, into a half layer"]
    program, args, kwargs = bug.make()
    with pytest.raises(RuntimeError, match="same dtype") as caught:
        guard(program, mode="strict")(*args, **kwargs)
    assert any("Denoiser" in note and 'depth="all"' in note for note in caught.value.__notes__)


class Experts(nn.Module):
    """Runs itself under autocast, whatever its surroundings do."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 4)

    @torch.autocast("cpu", dtype=BF16)
    def forward(self, x):
        return self.gate(x)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts, self.head = Experts(), nn.Linear(4, 2)

    def forward(self, x: Float32[Tensor, "b 4"]) -> Float32[Tensor, "b 2"]:
        return self.head(self.experts(x))


def test_a_half_result_that_left_its_region_is_named_at_the_next_layer():  # shawntan/scattermoe#17
    model, x = Mixture(), rand(3, 4)
    with pytest.raises(RuntimeError, match="same dtype"):
        model(x)
    expected = model.head(model.experts(x).float())
    with pytest.raises(DtypeError, match="`input` is bfloat16, the module's parameters are float32") as caught:
        guard(model, mode="strict", depth="all")(x)
    assert caught.value.module_path == "Mixture.head"
    with pytest.warns(CastWarning, match="bfloat16 to float32"):
        assert torch.equal(guard(model, mode="lenient", depth="all")(x), expected)


Half = Float16[Tensor, "b h t d"] | BFloat16[Tensor, "b h t d"]


def kernel(q: Half, k: Half, v: Half) -> Half:
    """Stands for an attention kernel of an extension, which takes half precision only."""
    return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("half", [F16, BF16])
def test_a_kernel_gets_what_autocast_computes_in(half):  # meteofrance/py4cast#38
    q = F.normalize(rand(1, 1, 3, 4), dim=-1)
    with torch.autocast("cpu", dtype=half):
        with pytest.raises(DtypeError, match="`q` is float32") as caught:
            enforce(mode="strict")(kernel)(q, q, q)
        assert caught.value.expected is half
        with pytest.warns(CastWarning):
            out = enforce(mode="lenient")(kernel)(q, q, q)
        assert out.dtype is half
        assert torch.equal(out, kernel(*[q.to(half)] * 3))


def test_one_line_is_repaired_for_the_region_that_it_is_in():
    call = enforce(mode="lenient")(kernel)
    dtypes = []
    for half in (F16, BF16, F16, BF16):
        with torch.autocast("cpu", dtype=half), warnings.catch_warnings(action="ignore", category=CastWarning):
            dtypes.append(call(*[rand(1, 1, 3, 4)] * 3).dtype)
    assert dtypes == [F16, BF16, F16, BF16]


class Canvas(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(3, 2)

    def forward(self, pillars, where):
        canvas = torch.zeros(6, 2)
        canvas[where] = self.features(pillars)
        return canvas


def test_an_indexed_write_of_a_half_result_is_noted_with_its_module():  # open-mmlab/mmdetection3d#1842
    model = guard(Canvas(), mode="strict")
    with torch.autocast("cpu", dtype=BF16), pytest.raises(RuntimeError, match="Index put requires") as caught:
        model(rand(3, 3), torch.tensor([0, 2, 5]))
    assert any("raised inside Canvas" in note for note in caught.value.__notes__)
