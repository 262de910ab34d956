"""DG308 unscaled-backward."""

from typing import Any

from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity
from ...amp._scaling import Driven, Scaling

RULE = Rule(
    "DG308",
    "unscaled-backward",
    Severity.ERROR,
    summary="A backward without `scaler.scale` makes gradients that the GradScaler then divides by the scale.",
    says=(
        "{optimizer} gets gradients of {names} from a backward without `scaler.scale`; unscaling divides "
        "them by {scale:g}"
    ),
    fix="`{scaler_code}.scale(loss).backward()` for every loss whose gradients this scaler unscales",
    why=(
        "The scaler divides whatever it finds in `.grad` by the scale. A loss that was not multiplied by "
        "it arrives tens of thousands of times too small, without an error."
    ),
    sources=("https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",),
)


@on("gradients", RULE)
def not_scaled(driven: Driven, written: Any, op: str, scaling: Scaling) -> None:
    foreign = [reached.parameter for reached in driven.reached if reached.alien]
    alien = [parameter for parameter in foreign if parameter is not None and not scaling.blind]
    if (alien and driven.losses) or not (driven.losses or driven.by_hand):
        parameters = alien or [parameter for parameter, _ in driven.watched.gradients()]
        driven.watched.add(RULE, {"scale": scaling.scale}, parameters, op=op)


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
output = model(torch.ones(4, 3))
scaler.scale(output.square().mean()).backward(retain_graph=True)
output.abs().mean().backward()
scaler.step(optimizer)
scaler.update()
""",
        at=13,
        prints="SGD gets gradients of `Linear.weight`, `Linear.bias` from a backward without `scaler.scale`; "
        "unscaling divides them by 65536",
        fix="`scaler.scale(loss).backward()` for every loss whose gradients this scaler unscales",
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
    loss = model(torch.ones(4, 3)).square().mean() / 4
    if step < 3:
        scaler.scale(loss).backward()
    else:
        loss.backward()
scaler.unscale_(optimizer)
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
""",
        at=16,
        prints="SGD gets gradients of `Linear.weight`, `Linear.bias` from a backward without `scaler.scale`; "
        "unscaling divides them by 65536",
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
        loss = scaler.scale(loss)
    loss.backward()
    scaler.step(optimizer)
    scaler.update()
""",
        at=16,
        prints="SGD gets gradients of `Linear.weight`, `Linear.bias` from a backward without `scaler.scale`; "
        "unscaling divides them by 65536",
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
output = model(torch.ones(4, 3))
scaler.scale(output.square().mean()).backward(retain_graph=True)
scaler.scale(output.abs().mean()).backward()
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
model(torch.ones(4, 3)).square().mean().backward()
print("norm", model.weight.grad.norm().item())
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

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
loss = model(torch.ones(4, 3)).square().mean()
gradients = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
penalty = sum((gradient / scaler.get_scale()).square().sum() for gradient in gradients)
scaler.scale(loss + penalty).backward()
scaler.step(optimizer)
scaler.update()
"""
    ),
]
