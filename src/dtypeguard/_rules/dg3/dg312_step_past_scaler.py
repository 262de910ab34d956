"""DG312 step-past-scaler."""

from torch.amp.grad_scaler import OptState

from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity
from ...amp._scaling import Driven, Scaling

RULE = Rule(
    "DG312",
    "step-past-scaler",
    Severity.ERROR,
    summary="`optimizer.step()` is called directly on gradients that a GradScaler has to unscale and check.",
    says="{optimizer}.step() was called directly {stage}",
    fix="`{scaler_code}.step({optimizer_code})` in place of `{optimizer_code}.step()`",
    why=(
        "Between `scaler.scale(loss).backward()` and `scaler.step` gradients are multiplied by the scale. "
        "Stepping without the scaler applies them so, or, after `unscale_`, without looking for inf and "
        "NaN."
    ),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",),
)


@on("past", RULE)
def past(driven: Driven, stage: OptState, scaling: Scaling) -> None:
    title, how = driven.watched.title, "after `unscale_`, past the scaler's check for inf and NaN"
    if stage is OptState.READY:
        how = f"on gradients that are still multiplied by the scale {scaling.scale:g}"
    scaling.find(RULE, f"{title}.step", {"optimizer": title, "held": driven.watched.optimizer, "stage": how})


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
scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
optimizer.step()
scaler.update()
""",
        at=11,
        prints="SGD.step() was called directly on gradients that are still multiplied by the scale 65536",
        fix="`scaler.step(optimizer)` in place of `optimizer.step()`",
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
scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
scaler.unscale_(optimizer)
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
scaler.update()
""",
        at=13,
        prints="SGD.step() was called directly after `unscale_`, past the scaler's check for inf and NaN",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

body, head = nn.Linear(3, 3), nn.Linear(3, 1)
first = torch.optim.SGD(body.parameters(), lr=0.1)
second = torch.optim.SGD(head.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch([body, head], [first, second], scaler)
scaler.scale(head(body(torch.ones(4, 3))).square().mean()).backward()
scaler.step(first)
second.step()
scaler.update()
""",
        at=13,
        prints="SGD#2.step() was called directly on gradients that are still multiplied by the scale 65536",
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
scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
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
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 3)).square().mean()
    if step < 2:
        loss.backward()
        optimizer.step()
    else:
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
scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
for parameter in model.parameters():
    parameter.grad /= scaler.get_scale()
if all(parameter.grad.isfinite().all() for parameter in model.parameters()):
    optimizer.step()
"""
    ),
]
