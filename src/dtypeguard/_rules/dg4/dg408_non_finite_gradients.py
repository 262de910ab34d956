"""DG408 non-finite-gradients."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG408",
    "non-finite-gradients",
    Severity.ERROR,
    summary="An optimizer is given gradients that are infinite or NaN, and the parameters become so too.",
    says="gradients of {names} ({share} with a gradient) are not finite",
    fix=(
        "find the operation with `torch.autograd.set_detect_anomaly(True)`; under float16 autocast a "
        "GradScaler skips such steps"
    ),
    why="One step with a NaN or infinite gradient makes the parameter NaN, and every later result with it.",
    sources=("https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection",),
)

BAD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
x = torch.ones(4, 3)
target = model(x).detach()
for _ in range(3):
    optimizer.zero_grad()
    (model(x) - target).square().sum().sqrt().backward()
    optimizer.step()
""",
        at=14,
        prints="gradients of `Linear.weight`, `Linear.bias` (2 of 2 parameters with a gradient) are not finite",
        fix=(
            "find the operation with `torch.autograd.set_detect_anomaly(True)`; under float16 autocast a "
            "GradScaler skips such steps"
        ),
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.ParameterDict({"logits": nn.Parameter(torch.tensor([20.0, -1.0], dtype=torch.bfloat16))})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
survival = torch.log1p(-model["logits"].sigmoid()).exp()
(1 - survival.prod()).backward()
optimizer.step()
""",
        at=11,
        prints="gradients of `a parameter of shape [2]` (1 of 1 parameters with a gradient) are not finite",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
x = torch.full((8, 3), 100.0).half()
loss = (model(x) - 1000).float().square().sum()
loss.backward()
optimizer.step()
""",
        at=12,
        prints="gradients of `Linear.weight` (1 of 2 parameters with a gradient) are not finite",
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
x = torch.ones(4, 3)
target = model(x).detach()
for _ in range(3):
    optimizer.zero_grad()
    (model(x) - target).square().sum().add(1e-12).sqrt().backward()
    optimizer.step()
""",
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
for _ in range(4):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(torch.full((8, 3), 100.0))
    loss = (output.float() - 1000).square().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
for x in (torch.ones(4, 3), torch.full((4, 3), float("nan")), torch.ones(4, 3)):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    if loss.isfinite():
        loss.backward()
        optimizer.step()
""",
    ),
]
