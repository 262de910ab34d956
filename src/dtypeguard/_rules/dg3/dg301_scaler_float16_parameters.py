"""DG301 scaler-float16-parameters."""

from typing import Any

import torch
from torch.amp import GradScaler

from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity
from ...amp._scaling import Driven, Scaling

RULE = Rule(
    "DG301",
    "scaler-float16-parameters",
    Severity.ERROR,
    summary="A GradScaler is used with float16 parameters, whose gradients it refuses.",
    says="{names} ({share} trainable parameters) are float16, and a GradScaler refuses float16 gradients",
    fix=(
        "keep the parameters in float32 (`model.float()` before the optimizer is built) and run the "
        "forward under `torch.autocast({device!r}, dtype=torch.float16)`"
    ),
    why=(
        "A GradScaler divides gradients by the scale in place, and float16 gradients have lost what the "
        'scale was to save: `unscale_` refuses them with "Attempting to unscale FP16 gradients", after the '
        "first backward. Mixed precision keeps float32 master weights, and lets autocast cast them for "
        "each operation."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",
        "https://github.com/haotian-liu/LLaVA/issues/363",
    ),
)


@on("driven", RULE)
def half_parameters(driven: Driven, scaling: Scaling) -> None:
    parameters = list(driven.watched.parameters())
    half = [parameter for parameter in parameters if parameter.dtype is torch.float16]
    if half and scaling.enabled and not _takes_float16(scaling.scaler):
        facts = {"device": scaling.device, "share": f"{len(half)} of {len(parameters)}"}
        driven.watched.add(RULE, facts, half, from_dtype=torch.float16, to_dtype=torch.float32)


def _takes_float16(scaler: Any) -> bool:
    """Whether somebody taught the scaler to unscale float16 gradients (FSDP's does, and some training scripts)."""
    owners = (vars(owner) for owner in (scaler, *type(scaler).__mro__))
    return next(own["_unscale_grads_"] for own in owners if "_unscale_grads_" in own) is not GradScaler._unscale_grads_


BAD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(3):
    loss = model(torch.ones(4, 3, dtype=torch.float16)).float().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
        at=13,
        prints="`Linear.weight`, `Linear.bias` (2 of 2 trainable parameters) are float16, and a GradScaler "
        "refuses float16 gradients",
        fix=(
            "keep the parameters in float32 (`model.float()` before the optimizer is built) and run the "
            "forward under `torch.autocast('cpu', dtype=torch.float16)`"
        ),
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1, dtype=torch.float16))
optimizer = torch.optim.AdamW(model.parameters(), eps=1e-4)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.autocast("cpu", dtype=torch.float16):
    loss = nn.functional.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 1))
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
""",
        at=13,
        prints="`Sequential.1.weight`, `Sequential.1.bias` (2 of 4 trainable parameters) are float16, and a "
        "GradScaler refuses float16 gradients",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

torch.save(nn.Linear(3, 1).half().state_dict(), "model.pt")
with torch.device("meta"):
    model = nn.Linear(3, 1)
model.load_state_dict(torch.load("model.pt"), assign=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.autocast("cpu", dtype=torch.float16):
    loss = model(torch.ones(4, 3)).float().square().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
""",
        at=16,
        prints="`Linear.weight`, `Linear.bias` (2 of 2 trainable parameters) are float16, and a GradScaler "
        "refuses float16 gradients",
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(3):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(4, 3)).float().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1))
model[0].half().requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.autocast("cpu", dtype=torch.float16):
    loss = model(torch.ones(4, 3)).float().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", enabled=False)
watched = dtypeguard.amp.watch(model, optimizer, scaler)
loss = model(torch.ones(4, 3, dtype=torch.float16)).float().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
watched = dtypeguard.amp.watch(model, optimizer, scaler)
loss = model(torch.ones(4, 3, dtype=torch.float16)).float().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""
    ),
]
