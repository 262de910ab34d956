"""Every kind of message, word for word, against tests/golden/messages.txt.

`python tests/test_messages.py` writes the file anew; read the difference before you commit it.
"""

import pickle
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor, nn

import dtypeguard
from dtypeguard import CastError, DeviceError, DtypeError, DtypeGuardError, HintError, ShapeError

GOLDEN = Path(__file__).parent / "golden" / "messages.txt"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x: Float[Tensor, "batch 784"]) -> Float[Tensor, "batch 10"]:
        return self.layers(x)


class Enforced(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    @dtypeguard.enforce
    def forward(self, x: Float[Tensor, "b 3"]) -> Float[Tensor, "b 2"]:
        return self.fc(x)


class Conditioned(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(6, 8)

    def forward(self, *, latents, timestep, cond):
        return self.proj(cond["pooled"]) + latents.mean() + timestep.sum()


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.body = nn.ModuleList([nn.Linear(4, 4).to(torch.bfloat16)])

    def forward(self, x):
        return self.body[0](x)


class Pair(NamedTuple):
    img: Float32[Tensor, "c h w"]
    label: Int64[Tensor, ""]


@dtypeguard.enforce
def attend(q: Float32[Tensor, "b t d"], k: Float32[Tensor, "b s d"], mask: Bool[Tensor, "t s"] | None = None):
    return q @ k.mT


@dtypeguard.enforce
def loss(pred: Float32[Tensor, "b"], target: Float32[Tensor, "b"], weight: float = 1.0) -> Float32[Tensor, ""]:
    return (pred - target).square().mean(dtype=torch.float64) if weight == 2.0 else (pred - target).square().mean()


@dtypeguard.enforce
def collate(batch: list[Pair]) -> Float32[Tensor, "b c h w"]:
    return torch.stack([pair.img for pair in batch])


@dtypeguard.enforce(mutates=("out",))
def add_into(x: Float32[Tensor, "n"], out: Float32[Tensor, "n"]):
    out.add_(x)


@dtypeguard.enforce
def join(x: Float[Tensor, "*b n"], y: Float[Tensor, "*b n+1"], z: Float[Tensor, "2 ..."]):
    return x


def ones(*shape, dtype=torch.float32, device="cpu"):
    return torch.ones(shape, dtype=dtype, device=device)


f64, bf16, f16 = torch.float64, torch.bfloat16, torch.float16
guarded = dtypeguard.guard
CASES = {
    "guard: an annotated argument, against the parameters": (
        DtypeError,
        "strict",
        lambda: guarded(Net())(ones(32, 784, dtype=f64)),
    ),
    "guard: an unannotated argument": (DtypeError, "strict", lambda: guarded(nn.Linear(3, 1))(ones(2, 3, dtype=bf16))),
    "guard: every offender of the call": (
        DtypeError,
        "strict",
        lambda: guarded(Conditioned().half())(
            latents=ones(1, 4), timestep=torch.tensor([7]), cond={"pooled": ones(1, 6)}
        ),
    ),
    "guard: a submodule names its path": (DtypeError, "strict", lambda: guarded(Mixed())(ones(2, 4))),
    "guard: another device": (DeviceError, "strict", lambda: guarded(nn.Linear(3, 1, device="meta"))(ones(2, 3))),
    "guard: another device and another dtype": (
        DtypeError,
        "strict",
        lambda: guarded(nn.Linear(3, 1, device="meta"))(ones(2, 3, dtype=f64)),
    ),
    "guard: the dtype it was told": (DtypeError, "strict", lambda: guarded(nn.Linear(3, 1), dtype=bf16)(ones(2, 3))),
    "guard: a state inside a tuple": (
        DeviceError,
        "strict",
        lambda: guarded(nn.LSTM(3, 4, device="meta"))(ones(2, 1, 3, device="meta"), (ones(1, 1, 4), ones(1, 1, 4))),
    ),
    "enforce: a concrete dtype": (DtypeError, "strict", lambda: loss(ones(4), ones(4, dtype=f64))),
    "enforce: a method follows its module": (DtypeError, "strict", lambda: Enforced()(ones(2, 3, dtype=f64))),
    "enforce: the result": (DtypeError, "strict", lambda: loss(ones(4), ones(4), 2.0)),
    "enforce: an axis": (ShapeError, "strict", lambda: attend(ones(2, 3, 4), ones(1, 5, 4))),
    "enforce: a rank": (ShapeError, "lenient", lambda: attend(ones(2, 3, 4), ones(5, 4))),
    "enforce: a variadic axis": (ShapeError, "strict", lambda: join(ones(2, 3, 4), ones(3, 3, 5), ones(2))),
    "enforce: a symbolic axis": (ShapeError, "strict", lambda: join(ones(3, 4), ones(3, 4), ones(2))),
    "enforce: a fixed axis": (ShapeError, "strict", lambda: join(ones(3, 4), ones(3, 5), ones(3, 7))),
    "enforce: too few axes": (ShapeError, "strict", lambda: join(ones(4), ones(5), ones())),
    "enforce: deep in a container": (
        DtypeError,
        "strict",
        lambda: collate([Pair(ones(1, 2, 2), torch.tensor(1)), Pair(ones(1, 2, 2, dtype=f64), torch.tensor(1))]),
    ),
    "enforce: another hint": (HintError, "strict", lambda: loss(ones(4), ones(4), "heavy")),
    "enforce: no tensor at all": (HintError, "lenient", lambda: loss(ones(4), [1.0, 2.0])),
    "enforce: NumPy in strict mode": (HintError, "strict", lambda: loss(ones(4), np.ones(4))),
    "enforce: None": (HintError, "lenient", lambda: loss(ones(4), None)),
    "enforce: an argument named like the anchor": (
        DtypeError,
        "strict",
        lambda: dtypeguard.enforce(anchored, anchor="pred")(ones(2), ones(2, dtype=f16)),
    ),
    "lenient: the casting rule forbids it": (CastError, "lenient", lambda: loss(ones(4), ones(4, dtype=torch.int64))),
    "lenient: a float mask for a bool one": (
        CastError,
        "lenient",
        lambda: attend(ones(1, 2, 3), ones(1, 2, 3), ones(2, 2)),
    ),
    "lenient: an argument that is written to": (CastError, "lenient", lambda: add_into(ones(3), ones(3, dtype=f64))),
    "lenient: values would become infinite": (
        CastError,
        "lenient",
        lambda: guarded(nn.Linear(2, 2).half())(torch.full((1, 2), torch.finfo(torch.float32).min)),
    ),
    "lenient: nothing to move": (CastError, "lenient", lambda: guarded(nn.Linear(3, 1))(ones(2, 3, device="meta"))),
    "check: one value": (
        DtypeError,
        "strict",
        lambda: dtypeguard.check(ones(2, dtype=f64), Float32[Tensor, "n"], name="weights"),
    ),
}  # fmt: skip


def anchored(pred: Float[Tensor, "b"], target: Float[Tensor, "b"]):
    return pred - target


def message_of(kind, mode, call):
    with dtypeguard.mode(mode), pytest.raises(kind) as caught:
        call()
    return re.sub(r"\.py:\d+", ".py:LINE", str(caught.value)), caught.value


def _golden():
    parts = re.split(r"^== (.*)$", GOLDEN.read_text() if GOLDEN.exists() else "", flags=re.MULTILINE)[1:]
    return {name: text.strip("\n") for name, text in zip(parts[::2], parts[1::2], strict=True)}


def write_golden():
    GOLDEN.parent.mkdir(exist_ok=True)
    texts = [f"== {name}\n{CASES[name][0].__name__}: {message_of(*case)[0]}\n" for name, case in CASES.items()]
    GOLDEN.write_text("\n".join(texts))


def test_the_golden_file_holds_these_cases():
    assert list(_golden()) == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_message(name):
    """And the error survives pickling with its facts."""
    kind, mode, call = CASES[name]
    text, error = message_of(kind, mode, call)
    assert f"{kind.__name__}: {text}" == _golden()[name]
    assert type(error) is kind
    twin = pickle.loads(pickle.dumps(error))
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)


def test_the_facts_are_attributes():
    model = dtypeguard.guard(Net(), mode="strict")
    with pytest.raises(DtypeError) as caught:
        model(ones(32, 784, dtype=f64))
    error = caught.value
    assert (error.argument, error.actual, error.expected) == ("x", torch.float64, torch.float32)
    assert (error.function, error.module_path, error.axes) == ("Net.forward", "Net", {"batch": 32})
    assert error.call_site.startswith("tests/test_messages.py:") or "test_messages.py:" in error.call_site
    assert error.origin == ()
    assert error.violations == ("argument `x` is float64, the module's parameters are float32",)


def test_every_error_is_a_type_error_and_a_dtypeguard_error():
    for name in ("DtypeError", "ShapeError", "DeviceError", "CastError", "HintError", "AnnotationError", "AmpError"):
        assert issubclass(getattr(dtypeguard, name), DtypeGuardError)
    assert issubclass(DtypeGuardError, TypeError)


if __name__ == "__main__":
    write_golden()
