"""DG305 float16-without-scaler."""

import torch

from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity
from ...amp._optimizer import WatchedOptimizer

RULE = Rule(
    "DG305",
    "float16-without-scaler",
    Severity.WARNING,
    summary="A model is trained under float16 autocast without a GradScaler.",
    says="the model ran under float16 autocast, and {optimizer} stepped without a GradScaler",
    fix=(
        "scale the loss: `scaler = torch.amp.GradScaler({device!r})`, `scaler.scale(loss).backward()`, "
        "`scaler.step({optimizer_code})`, `scaler.update()`; or use bfloat16; for a loss scale of your own, "
        "ignore this rule"
    ),
    why=(
        "Gradients below 6e-8 are zero in float16, and activations' gradients often are that small. "
        "Without a scale those parts of the model silently stop learning."
    ),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",),
)


@on("alone", RULE)
def without_scaler(watched: WatchedOptimizer, dtype: torch.dtype, device: str) -> None:
    if dtype is torch.float16:
        watched.add(RULE, {"device": device}, (), from_dtype=dtype)


BAD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
for step in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 1))
    loss.backward()
    optimizer.step()
""",
        at=14,
        prints="the model ran under float16 autocast, and SGD stepped without a GradScaler",
        fix=(
            "scale the loss: `scaler = torch.amp.GradScaler('cpu')`, `scaler.scale(loss).backward()`, "
            "`scaler.step(optimizer)`, `scaler.update()`; or use bfloat16; for a loss scale of your own, "
            "ignore this rule"
        ),
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 1)

    @torch.autocast("cpu", dtype=torch.float16)
    def forward(self, x):
        return self.head(x)


model = Net()
optimizer = torch.optim.AdamW(model.parameters())
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(4, 3)).float().mean().backward()
optimizer.step()
""",
        at=21,
        prints="the model ran under float16 autocast, and AdamW stepped without a GradScaler",
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
with torch.autocast("cpu", dtype=torch.float16):
    loss = model(torch.ones(4, 3)).float().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
""",
        at=13,
        prints="the model ran under float16 autocast, and SGD stepped without a GradScaler",
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

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = nn.functional.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 1))
loss.backward()
optimizer.step()
"""
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(4, 3)).mean().backward()
optimizer.step()
model.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    model(torch.ones(4, 3))
model.train()
optimizer.zero_grad()
model(torch.ones(4, 3)).mean().backward()
optimizer.step()
"""
    ),
]
