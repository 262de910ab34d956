"""Real models whose authors keep inputs in float32 beside half weights: a guard must not touch those."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dtypeguard
from dtypeguard import CastWarning, DtypeError, guard, unguard

BF16 = torch.bfloat16
APART = Path(sys.prefix) / "apart"  # where `make .venv` puts what would break other packages' imports
SOURCE = Path(dtypeguard.__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(not APART.exists(), reason="torchvision is not installed apart")
def test_detectors_in_bfloat16_compute_the_same_losses_of_float32_boxes():
    run = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", Path(__file__).with_name("detectors.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, APART)))},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout.splitlines()[-1])
    assert set(report) == {"Faster R-CNN", "Mask R-CNN", "RetinaNet", "FCOS", "SSD"}
    assert {name: (row["same"], row["repairs"]) for name, row in report.items()} == dict.fromkeys(report, (True, 0))


@pytest.fixture(scope="module")
def diffusion():
    """Stable Diffusion 3's transformer, and a call as diffusers' pipeline makes it."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    model = diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8,
        num_attention_heads=4, joint_attention_dim=16, caption_projection_dim=32, pooled_projection_dim=16,
        pos_embed_max_size=16,
    )  # fmt: skip
    call = {
        "hidden_states": torch.randn(2, 4, 8, 8, dtype=BF16),
        "encoder_hidden_states": torch.randn(2, 7, 16, dtype=BF16),
        "pooled_projections": torch.randn(2, 16, dtype=BF16),
        "timestep": torch.tensor(947.54).expand(2),
        "return_dict": False,
    }
    return model.to(BF16).eval(), call


@torch.no_grad()
def test_the_timestep_of_a_diffusion_transformer_stays_float32(diffusion):
    model, call = diffusion
    for timestep in (call["timestep"], torch.tensor([999.0, 501.0])):
        expected = unguard(model)(**{**call, "timestep": timestep})[0]
        for mode in ("strict", "lenient"):
            guarded = guard(model, mode=mode)
            for _ in range(2):
                assert torch.equal(guarded(**{**call, "timestep": timestep})[0], expected)
    assert dtypeguard.casts() == []


@torch.no_grad()
def test_a_forgotten_condition_is_told_from_the_timestep_beside_it(diffusion):
    model, call = diffusion
    expected = unguard(model)(**call)[0]
    forgotten = {**call, "encoder_hidden_states": call["encoder_hidden_states"].float()}
    with pytest.warns(CastWarning, match="`encoder_hidden_states` was cast .* where .*context_embedder needs it"):
        assert torch.equal(guard(model)(**forgotten)[0], expected)
    with pytest.raises(DtypeError, match="argument `encoder_hidden_states` is float32") as caught:
        guard(model, mode="strict")(**forgotten)
    assert "beside     timestep = f32[2] on cpu" in str(caught.value)
