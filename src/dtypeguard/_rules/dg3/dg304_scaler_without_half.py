"""DG304 scaler-without-half."""

import torch

from ..._base.dtypes import HALF
from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity
from ...amp._scaling import Scaling

RULE = Rule(
    "DG304",
    "scaler-without-half",
    Severity.INFO,
    summary="A GradScaler is enabled, but nothing that it scales was computed in float16.",
    says="a GradScaler is enabled, but nothing between the parameters and the loss is in float16",
    fix="run the forward under `torch.autocast({device!r}, dtype=torch.float16)`, or drop the scaler",
    why=(
        "Scaling float32 gradients does no harm, but gains nothing either: often the autocast region was "
        "forgotten, or does not reach the model."
    ),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",),
)


@on("computed", RULE)
def nothing_in_half(dtypes: set[torch.dtype], scaling: Scaling) -> None:
    if not dtypes & HALF:
        scaling.find(RULE, "GradScaler.scale", {})


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
    loss = nn.functional.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 1))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        at=13,
        prints="a GradScaler is enabled, but nothing between the parameters and the loss is in float16",
        fix="run the forward under `torch.autocast('cpu', dtype=torch.float16)`, or drop the scaler",
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
with torch.autocast("cpu", dtype=torch.float16, enabled=False):
    output = model(torch.ones(4, 3))
scaler.scale(output.square().mean()).backward()
scaler.step(optimizer)
scaler.update()
""",
        at=12,
        prints="a GradScaler is enabled, but nothing between the parameters and the loss is in float16",
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
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    target = teacher(torch.ones(4, 3)).float()
loss = nn.functional.mse_loss(model(torch.ones(4, 3)), target)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
""",
        at=13,
        prints="a GradScaler is enabled, but nothing between the parameters and the loss is in float16",
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
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
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

model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.autocast("cpu", dtype=torch.float16):
    inner = model[0](torch.ones(4, 3))
loss = model[1](inner.float()).mean()
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
scaler = torch.amp.GradScaler("cpu", enabled=False)
watched = dtypeguard.amp.watch(model, optimizer, scaler)
scaler.scale(model(torch.ones(4, 3)).mean()).backward()
scaler.step(optimizer)
scaler.update()
"""
    ),
]
