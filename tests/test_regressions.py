"""Faults that users met, each with the program that showed it."""

import subprocess
import sys
from typing import Literal, TypedDict

import jaxtyping
import pytest
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor, nn

import dtypeguard
from dtypeguard import AnnotationError, CastWarning, DtypeError, HintError

F64, BF16 = torch.float64, torch.bfloat16


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_argument_and_result_of_one_line_are_repaired_again_and_again():
    @dtypeguard.enforce
    def f(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
        return x.double()

    for _ in range(4):
        assert f(torch.rand(3, dtype=F64)).dtype is torch.float32
    assert [record.count for record in dtypeguard.casts()] == [4, 4]


@pytest.mark.slow
def test_a_mode_block_is_seen_by_code_that_was_compiled_before_the_first_block():
    """In a process of its own: any earlier block on the thread would hide the fault."""
    program = """
import torch, dtypeguard, warnings
from jaxtyping import Float
warnings.simplefilter("ignore")
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 3)
    @dtypeguard.enforce
    def forward(self, x: Float[torch.Tensor, "b 3"]): return self.fc(x)
net = torch.compile(Net(), backend="eager")
x = torch.ones(2, 3, dtype=torch.float64)
net(x)
try:
    with dtypeguard.mode("strict"): net(x)
except dtypeguard.DtypeError: print("raised")
print(net(x).dtype)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["raised", "torch.float32"]


def test_the_float32_loss_of_bfloat16_logits_is_not_narrowed():
    @dtypeguard.enforce(anchor="logits")
    def loss(logits: Float[Tensor, "b c"], weight: Float[Tensor, "c"]) -> Float[Tensor, ""]:
        return nn.functional.cross_entropy(logits.float(), torch.zeros(len(logits), dtype=torch.int64), weight.float())

    with pytest.warns(CastWarning, match="`weight` was cast from float64 to bfloat16"):
        assert loss(torch.ones(2, 3, dtype=BF16), torch.ones(3, dtype=F64)).dtype is torch.float32


@pytest.mark.parametrize("hint", [torch.float32, jaxtyping.Float32, jaxtyping.Float, torch.ones(2)], ids=repr)
def test_what_is_no_annotation_is_refused_and_not_taken_for_any(hint):
    with pytest.raises(AnnotationError, match="is no annotation"):
        dtypeguard.check(torch.ones(2, dtype=F64), hint)

    def f(x): ...

    f.__annotations__ = {"x": hint}
    with pytest.raises(AnnotationError, match=r"`x`.*is no annotation"):
        dtypeguard.enforce(f)


def test_a_name_in_a_string_for_check_that_does_not_exist():
    with pytest.raises(AnnotationError, match="NoSuchName"):
        dtypeguard.check(torch.ones(2), "NoSuchName")


class Batch(TypedDict):
    x: Float32[Tensor, "n"]
    y: Float32[Tensor, "n"]


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (Batch, {"x": torch.ones(2)}, "has no 'y'"),
        (Literal["mean", "sum"], "max", "the annotation wants one of 'mean', 'sum'"),
        (Float32[Tensor, "n"], {"x": torch.ones(2, 3)}, r"value = \{'x': f32\[2,3\]\}"),
    ],
    ids=["missing key", "Literal", "a dict for a tensor"],
)
def test_messages_about_other_hints_say_what_is_missing(hint, value, text):
    with pytest.raises(HintError, match=text):
        dtypeguard.check(value, hint)


def test_a_family_is_named_as_one():
    with pytest.raises(DtypeError, match="is float32, the annotation wants Int, such as int64"):
        dtypeguard.check(torch.ones(2), Int[Tensor, "n"], mode="strict")
