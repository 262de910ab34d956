"""DG311 step-without-update."""

from torch.amp.grad_scaler import OptState

from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity
from ...amp._scaling import Driven, Scaling

RULE = Rule(
    "DG311",
    "step-without-update",
    Severity.ERROR,
    summary="An optimizer is stepped or unscaled again, and `scaler.update()` was not called since its last step.",
    says="`{call}` is called on {optimizer} again, and `scaler.update()` was not called since its last step",
    fix="`{scaler_code}.update()` once at the end of each iteration, after all optimizers have stepped",
    why=(
        "`update` moves the scale and forgets which optimizers were unscaled. Without it the next "
        "`unscale_` or `step` raises, and the scale never falls after an overflow."
    ),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler",),
)


@on("unscale", RULE)
def unscaled(driven: Driven, stage: OptState, scaling: Scaling) -> None:
    _again("unscale_", driven, stage, scaling)


@on("step", RULE)
def stepped(driven: Driven, stage: OptState, scaling: Scaling) -> None:
    _again("step", driven, stage, scaling)


def _again(method: str, driven: Driven, stage: OptState, scaling: Scaling) -> None:
    if stage is OptState.STEPPED:
        facts = {"optimizer": driven.watched.title, "call": f"scaler.{method}"}
        scaling.find(RULE, f"GradScaler.{method}", facts)


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
    scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
    scaler.step(optimizer)
""",
        at=13,
        prints="`scaler.step` is called on SGD again, and `scaler.update()` was not called since its last step",
        fix="`scaler.update()` once at the end of each iteration, after all optimizers have stepped",
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
for step in range(3):
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
""",
        at=13,
        prints="`scaler.unscale_` is called on SGD again, and `scaler.update()` was not called since its last step",
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
    scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
    scaler.step(optimizer)
    if step % 2 == 1:
        scaler.update()
""",
        at=13,
        prints="`scaler.step` is called on SGD again, and `scaler.update()` was not called since its last step",
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

body, head = nn.Linear(3, 3), nn.Linear(3, 1)
first = torch.optim.SGD(body.parameters(), lr=0.1)
second = torch.optim.SGD(head.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch([body, head], [first, second], scaler)
for step in range(2):
    first.zero_grad()
    second.zero_grad()
    scaler.scale(head(body(torch.ones(4, 3))).square().mean()).backward()
    scaler.step(first)
    scaler.step(second)
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
for step in range(3):
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
    scaler.step(optimizer)
"""
    ),
]
