"""DG303 scaler-with-bfloat16."""

import torch

from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity
from ...amp._scaling import Scaling

RULE = Rule(
    "DG303",
    "scaler-with-bfloat16",
    Severity.WARNING,
    summary="A GradScaler scales the loss of a model that computes in bfloat16, which needs no scaling.",
    says="a GradScaler is enabled, but the forward ran in bfloat16",
    fix=(
        "drop the scaler (`GradScaler(enabled=False)`), or run the forward under "
        "`torch.autocast({device!r}, dtype=torch.float16)`; on the CPU autocast's default is bfloat16"
    ),
    why=(
        "bfloat16 has the exponents of float32, so its gradients do not underflow and need no scaling. The "
        "scaler only adds an inf check and a copy, and skips steps that a bfloat16 program would take."
    ),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",),
)


@on("computed", RULE)
def in_bfloat16(dtypes: set[torch.dtype], scaling: Scaling) -> None:
    if torch.bfloat16 in dtypes and torch.float16 not in dtypes:
        scaling.find(RULE, "GradScaler.scale", {}, from_dtype=torch.bfloat16)


BAD = [
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
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 1))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        at=14,
        prints="a GradScaler is enabled, but the forward ran in bfloat16",
        fix=(
            "drop the scaler (`GradScaler(enabled=False)`), or run the forward under `torch.autocast('cpu', "
            "dtype=torch.float16)`; on the CPU autocast's default is bfloat16"
        ),
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.autocast("cpu"):
    output = model(torch.ones(4, 3))
scaler.scale(output.float().square().mean()).backward()
scaler.step(optimizer)
scaler.update()
""",
        at=12,
        prints="a GradScaler is enabled, but the forward ran in bfloat16",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for inputs in torch.ones(2, 4, 3, dtype=torch.bfloat16):
    loss = model(inputs).float().mean() / 2
    scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
""",
        at=12,
        prints="a GradScaler is enabled, but the forward ran in bfloat16",
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
scaler = torch.amp.GradScaler("cpu", enabled=False)
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 1))
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

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.autocast("cpu", dtype=torch.float16):
    output = model(torch.ones(4, 3))
scaler.scale(output.float().square().mean()).backward()
scaler.step(optimizer)
scaler.update()
"""
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

teacher, model = nn.Linear(3, 1), nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    target = teacher(torch.ones(4, 3)).float()
with torch.autocast("cpu", dtype=torch.float16):
    loss = nn.functional.mse_loss(model(torch.ones(4, 3)), target)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""
    ),
]
