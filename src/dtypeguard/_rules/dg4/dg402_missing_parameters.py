"""DG402 missing-parameters."""

from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity
from ...amp._holdings import Holdings

RULE = Rule(
    "DG402",
    "missing-parameters",
    Severity.WARNING,
    summary="Parameters get gradients, but no optimizer holds them, so they never move.",
    says="{names} ({share} trainable parameters) get gradients, and no watched optimizer holds them",
    fix=(
        "add them (`{optimizer_code}.add_param_group`), freeze them (`requires_grad_(False)`), or give every "
        "optimizer to `watch`"
    ),
    why=(
        "Parameters that no optimizer holds never move; their gradients are never zeroed by "
        "`optimizer.zero_grad()` either, so they grow, and `clip_grad_norm_(model.parameters())` clips by "
        "them."
    ),
    sources=("https://docs.pytorch.org/docs/stable/optim.html#constructing-it",),
)


@on("held", RULE)
def missing(held: Holdings) -> None:
    lost = [parameter for parameter in held.missing if parameter.grad is not None]
    if held.stepping and lost and not held.stale:
        facts = {"share": f"{len(lost)} of {len(held.trainable)}"}
        held.claim(RULE, held.optimizers[0], facts, lost, lost)


BAD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()
""",
        at=12,
        prints="`Sequential.0.weight`, `Sequential.0.bias` (2 of 4 trainable parameters) get gradients, and no "
        "watched optimizer holds them",
        fix=(
            "add them (`optimizer.add_param_group`), freeze them (`requires_grad_(False)`), or give every "
            "optimizer to `watch`"
        ),
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.append(nn.Linear(4, 1))
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()
""",
        at=13,
        prints="`Sequential.2.weight`, `Sequential.2.bias` (2 of 4 trainable parameters) get gradients, and no "
        "watched optimizer holds them",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
model[0].requires_grad_(False)
trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.SGD(trainable, lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
for step in range(8):
    if step == 2:
        model[0].requires_grad_(True)
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()
""",
        at=16,
        prints="`Sequential.0.weight`, `Sequential.0.bias` (2 of 4 trainable parameters) get gradients, and no "
        "watched optimizer holds them",
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
model[0].requires_grad_(False)
optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()
""",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.append(nn.Linear(4, 1))
optimizer.add_param_group({"params": model[2].parameters()})
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()
""",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
body = torch.optim.Adam(model[0].parameters(), lr=1e-3)
head = torch.optim.SGD(model[2].parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, [body, head])
for _ in range(4):
    model.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    body.step()
    head.step()
""",
    ),
]
