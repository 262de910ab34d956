"""DG313 scale-only-falls."""

import math

import torch

from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity, listed
from ...amp._optimizer import PERIOD
from ...amp._scaling import Scaling, unscales_itself
from ...amp._tensors import local

RULE = Rule(
    "DG313",
    "scale-only-falls",
    Severity.WARNING,
    summary="The scale falls below 1, because the gradients are not finite in any step.",
    says=("the scale has fallen from {start:g} to {scale:g}: {steps} were skipped for non-finite gradients{where}"),
    fix=(
        "look for NaN in the data and for overflow in the forward (a mask fill, an unclamped `exp`); a "
        "scale below 1 cannot help, and models pretrained in bfloat16 often cannot run in float16"
    ),
    why=(
        "The scaler halves the scale at each step whose gradients are not finite, and settles after a few. "
        "If it falls below 1, the gradients are non-finite for another reason; no step is taken any more."
    ),
    follows=("DG901",),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#torch.amp.GradScaler.update",),
)


_SKIPS = 8  # in a row
_SMALLEST = 2.0**-149  # float32 above 0


@on("update", RULE)
def only_falls(scaling: Scaling) -> None:
    worst = max(scaling.driven, key=lambda driven: driven.skips)
    if worst.skips < _SKIPS and scaling.updates % PERIOD:
        return
    start, last, scale = scaling.start, scaling.last, scaling.scale
    scaling.last = scale
    falls = worst.skips >= _SKIPS or (unscales_itself(worst.watched.optimizer) and scale < last / 2**_SKIPS)
    if falls and scale < min(1.0, start):
        pairs = worst.watched.gradients()
        wrong = [parameter for parameter, gradient in pairs if not torch.isfinite(local(gradient)).all()]
        names = worst.watched.names_of(wrong)
        skipped = worst.skipped or round(math.log2(start / max(scale, _SMALLEST)))  # fused ones are silent
        where = f", the last time in {listed(names)}" if names else ""
        facts = {"start": start, "scale": scale, "steps": f"{skipped} of {worst.iterations} steps", "where": where}
        scaling.find(RULE, "GradScaler.update", facts, parameters=names)


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
inputs = torch.ones(4, 3)
inputs = (inputs - inputs.mean(0)) / inputs.std(0)
for step in range(20):
    optimizer.zero_grad()
    scaler.scale(model(inputs).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        at=16,
        prints="the scale has fallen from 65536 to 0.5: 17 of 17 steps were skipped for non-finite gradients, "
        "the last time in `Linear.weight`, `Linear.bias`",
        fix=(
            "look for NaN in the data and for overflow in the forward (a mask fill, an unclamped `exp`); a "
            "scale below 1 cannot help, and models pretrained in bfloat16 often cannot run in float16"
        ),
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(10):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(torch.ones(4, 3)) * 1e6
    scaler.scale(output.float().square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        at=16,
        prints="the scale has fallen from 16 to 0.0625: 8 of 8 steps were skipped for non-finite gradients, the "
        "last time in `Linear.weight`, `Linear.bias`",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(10):
    optimizer.zero_grad()
    output = model(torch.zeros(4, 3)) - model.bias
    scaler.scale(output.sqrt().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        at=15,
        prints="the scale has fallen from 16 to 0.0625: 8 of 8 steps were skipped for non-finite gradients, the "
        "last time in `Linear.weight`, `Linear.bias`",
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
inputs = torch.ones(4, 3)
inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-6)
for step in range(20):
    optimizer.zero_grad()
    scaler.scale(model(inputs).square().mean()).backward()
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
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(25):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(4, 3)).float().square().mean()
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
scaler = torch.amp.GradScaler("cpu", init_scale=0.5)
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(10):
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    ),
]
