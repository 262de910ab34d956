"""DG306 half-loss."""

from torch import Tensor

from ..._base.dtypes import HALF
from ..._base.errors import plain
from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity
from ...amp._scaling import Scaling

RULE = Rule(
    "DG306",
    "half-loss",
    Severity.WARNING,
    summary="A loss is given to the GradScaler in float16 or bfloat16.",
    says="the loss given to `scaler.scale` is {found}",
    fix="compute the loss in float32: `criterion(output.float(), target)`",
    why=(
        "The scaled loss and the first gradient are computed in the loss's own dtype. In float16 a scale "
        "of 65536 is infinite already, and in bfloat16 a loss has three digits."
    ),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference",),
)


@on("scaled", RULE)
def in_half(losses: list[Tensor], detached: bool, scaling: Scaling) -> None:
    half = next((loss.dtype for loss in losses if loss.dtype in HALF), None)
    if half is not None:
        scaling.find(RULE, "GradScaler.scale", {"found": plain(half)}, from_dtype=half)


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
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (model(torch.ones(4, 3)) - 3).abs().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        at=14,
        prints="the loss given to `scaler.scale` is float16",
        fix="compute the loss in float32: `criterion(output.float(), target)`",
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
first, second = scaler.scale([output.float().mean(), output.amax()])
(first + second).backward()
scaler.step(optimizer)
scaler.update()
""",
        at=12,
        prints="the loss given to `scaler.scale` is float16",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2).bfloat16())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
logits = model[1](model[0](torch.ones(4, 3)).bfloat16())
loss = nn.functional.cross_entropy(logits, torch.tensor([0, 1, 0, 1]))
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
""",
        at=12,
        prints="the loss given to `scaler.scale` is bfloat16",
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
        loss = (model(torch.ones(4, 3)).float() - 3).abs().mean()
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
scaler = torch.amp.GradScaler("cpu", enabled=False)
watched = dtypeguard.amp.watch(model, optimizer, scaler)
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = (model(torch.ones(4, 3)) - 3).abs().amax()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
"""
    ),
]
