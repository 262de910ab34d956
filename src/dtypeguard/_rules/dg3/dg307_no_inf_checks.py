"""DG307 no-inf-checks."""

from torch import Tensor
from torch.amp.grad_scaler import OptState

from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity
from ...amp._scaling import Driven, Scaling, unscales_itself

RULE = Rule(
    "DG307",
    "no-inf-checks",
    Severity.ERROR,
    summary="A GradScaler steps an optimizer that has no gradients, or scales a loss that is detached.",
    says="{what}, so the scaler has no gradients to check",
    fix=(
        "call `{scaler_code}.scale(loss).backward()` on a loss that depends on this optimizer's parameters: no "
        "`.detach()`, `.item()` or `torch.no_grad()` on its way"
    ),
    why=(
        "`scaler.step` divides and checks the gradients of the optimizer's parameters. If none has one, "
        'PyTorch raises "No inf checks were recorded for this optimizer", which does not say that the loss '
        "was detached, or that the optimizer holds other parameters than those that the loss depends on."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers",
    ),
)


@on("scaled", RULE)
def without_graph(losses: list[Tensor], detached: bool, scaling: Scaling) -> None:
    if detached and not scaling.graphs:  # else it may be for a log, and `step` will tell
        scaling.find(RULE, "GradScaler.scale", {"what": "the loss is detached"})


@on("step", RULE)
def without_gradients(driven: Driven, stage: OptState, scaling: Scaling) -> None:
    watched = driven.watched
    several = len(scaling.driven) > 1 and unscales_itself(watched.optimizer)  # torch lets one of several go without
    if stage is not OptState.STEPPED and not several and not watched.has_gradients():
        what = f"no parameter of {watched.title} has a gradient"
        scaling.find(RULE, "GradScaler.step", {"what": what, "optimizer": watched.title})


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
loss = model(torch.ones(4, 3)).square().mean()
scaler.scale(loss.detach()).backward()
scaler.step(optimizer)
scaler.update()
""",
        at=11,
        prints="the loss is detached, so the scaler has no gradients to check",
        fix=(
            "call `scaler.scale(loss).backward()` on a loss that depends on this optimizer's parameters: no "
            "`.detach()`, `.item()` or `torch.no_grad()` on its way"
        ),
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

body, head = nn.Linear(3, 4), nn.Linear(4, 1)
optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(body, optimizer, scaler)
features = body(torch.ones(4, 3)).detach()
scaler.scale(head(features).square().mean()).backward()
scaler.step(optimizer)
scaler.update()
""",
        at=12,
        prints="no parameter of SGD has a gradient, so the scaler has no gradients to check",
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
    scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
    optimizer.zero_grad()
    scaler.step(optimizer)
    scaler.update()
""",
        at=13,
        prints="no parameter of SGD has a gradient, so the scaler has no gradients to check",
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
losses = [model(inputs).square().mean().item() for inputs in torch.ones(2, 4, 3)]
loss = torch.tensor(losses, requires_grad=True).mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
""",
        at=13,
        prints="no parameter of SGD has a gradient, so the scaler has no gradients to check",
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
loss = model(torch.ones(4, 3)).square().mean()
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
loss = model(torch.ones(4, 3)).square().mean()
scaler.scale(loss).backward()
print("loss", scaler.scale(loss.detach()).item())
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
for optimizer in [first, second]:
    scaler.scale(head(body(torch.ones(4, 3))).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    ),
]
