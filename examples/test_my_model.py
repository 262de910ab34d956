"""Property tests of a model's dtypes, as you would write them in your project.

They test a classifier with annotations, a loss, and an encoder of PyTorch without annotations with every dtype that a
user could pass, with and without autocast.

Run it with `pytest examples/test_my_model.py`, or with `python examples/test_my_model.py`. It takes some seconds.
"""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

import dtypeguard
from dtypeguard.testing import check_module, inputs_for, tensors, violations_of

torch.set_num_threads(1)  # many threads make tiny operations slow
settings.register_profile("models", deadline=None)  # the first call of an operation takes longer than the others
settings.load_profile("models")


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 10))

    def forward(self, x: Float[Tensor, "batch 16"]) -> Float[Tensor, "batch 10"]:
        return self.layers(self.norm(x))


@dtypeguard.enforce
def smoothed(logits: Float32[Tensor, "batch classes"], target: Int64[Tensor, " batch"]) -> Float32[Tensor, ""]:
    """Cross entropy with label smoothing; in float32, because logarithms of half values are too inexact."""
    return nn.functional.cross_entropy(logits, target, label_smoothing=0.1)


NUMBERS = st.floats(-8, 8, width=16)


def test_the_classifier_takes_every_dtype() -> None:
    check_module(Classifier, elements=NUMBERS, axes={"batch": st.integers(1, 4)})


def test_an_encoder_that_nobody_annotated_does_too() -> None:
    report = check_module(lambda: nn.TransformerEncoderLayer(16, 2, dropout=0.0), batch=torch.randn(5, 1, 16))
    assert not report.failures


def test_pytorch_s_own_norm_is_a_trap() -> None:
    report = check_module(lambda: nn.LayerNorm(16), batch=torch.randn(2, 16), region=[None])
    silent = {(cell.parameter_dtype, cell.input_dtype) for cell in report.traps}
    assert (torch.float32, torch.bfloat16) in silent  # without a guard it computes, and raises no error


@given(
    inputs_for(smoothed, axes={"batch": 3, "classes": 10}, elements={"logits": NUMBERS, "target": st.integers(0, 9)})
)
def test_the_loss_is_a_number_above_zero(inputs) -> None:
    assert smoothed(*inputs.args) > 0


@given(tensors(Float[Tensor, "batch 16"], dtype=torch.float32, elements=NUMBERS))
def test_rows_do_not_see_each_other(x: Tensor) -> None:
    model = Classifier().eval()
    for row in x:
        torch.testing.assert_close(model(x).detach()[:1], model(x[:1]).detach())
        assert model(row[None]).shape == (1, 10)


@given(violations_of(Float32[Tensor, "batch classes"]))
def test_the_loss_refuses_what_breaks_its_contract(breach) -> None:
    target = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(dtypeguard.DtypeGuardError):
        smoothed(breach.value, target)


@pytest.mark.dtypeguard(mode="lenient")
def test_in_production_it_repairs(dtype_casts) -> None:
    model = dtypeguard.guard(Classifier().bfloat16())
    with pytest.warns(dtypeguard.CastWarning):
        model(torch.randn(2, 16))
    assert [repair.argument for repair in dtype_casts()] == ["x"]


if __name__ == "__main__":
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", __file__]
    sys.exit(subprocess.run(command).returncode)
