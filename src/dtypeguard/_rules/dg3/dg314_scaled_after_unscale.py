"""DG314 scaled-after-unscale."""

from torch.amp.grad_scaler import OptState

from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity
from ...amp._scaling import Driven, Scaling

RULE = Rule(
    "DG314",
    "scaled-after-unscale",
    Severity.ERROR,
    summary="The gradients of a scaled loss are added to gradients that `unscale_` has divided by the scale already.",
    says=(
        "a scaled loss was added to the gradients of {optimizer} after `unscale_`: they mix parts that are "
        "divided by the scale {scale:g} and parts that are not"
    ),
    fix="call `unscale_` once, after the last micro-batch; or `step` and `update` before the next loss",
    why=(
        "`unscale_` divides the gradients that are there. A backward of a scaled loss after it adds "
        "gradients that are tens of thousands of times too large, and `step` does not divide again: "
        "PyTorch applies them as they are."
    ),
    sources=("https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",),
)


@on("step", RULE)
def mixed(driven: Driven, stage: OptState, scaling: Scaling) -> None:
    if driven.late:
        scaling.find(RULE, "GradScaler.step", {"optimizer": driven.watched.title, "scale": scaling.scale})


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
for step in range(4):
    scaler.scale(model(torch.ones(4, 3)).square().mean() / 4).backward()
    if step == 1:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
""",
        at=15,
        prints="a scaled loss was added to the gradients of SGD after `unscale_`: they mix parts that are "
        "divided by the scale 65536 and parts that are not",
        fix="call `unscale_` once, after the last micro-batch; or `step` and `update` before the next loss",
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
penalty = 0.01 * model.weight.square().sum()
scaler.scale(penalty).backward()
scaler.step(optimizer)
scaler.update()
""",
        at=14,
        prints="a scaled loss was added to the gradients of SGD after `unscale_`: they mix parts that are "
        "divided by the scale 65536 and parts that are not",
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
features = body(torch.ones(4, 3))
scaler.scale(features.square().mean()).backward(retain_graph=True)
scaler.unscale_(first)
scaler.scale(head(features).square().mean()).backward()
scaler.step(first)
scaler.step(second)
scaler.update()
""",
        at=15,
        prints="a scaled loss was added to the gradients of SGD after `unscale_`: they mix parts that are "
        "divided by the scale 65536 and parts that are not",
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
for step in range(4):
    scaler.scale(model(torch.ones(4, 3)).square().mean() / 4).backward()
scaler.unscale_(optimizer)
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
features = body(torch.ones(4, 3))
scaler.scale(features.square().mean()).backward()
scaler.unscale_(first)
scaler.scale(head(features.detach()).square().mean()).backward()
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
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(4):
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
    scaler.unscale_(optimizer)
    if model.weight.grad.norm() < 100:
        scaler.step(optimizer)
    scaler.update()
"""
    ),
]
