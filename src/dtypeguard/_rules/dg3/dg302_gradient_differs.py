"""DG302 gradient-differs."""

from torch import Tensor

from ..._base.errors import plain
from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity
from ...amp._optimizer import Group

RULE = Rule(
    "DG302",
    "gradient-differs",
    Severity.ERROR,
    summary="A gradient has another dtype or device than its parameter.",
    says="the gradients of {names} are {found}, the parameters {expected}",
    fix="convert the model before the first backward, or call `{optimizer_code}.zero_grad()` after converting it",
    why=(
        "A gradient has its parameter's dtype and device, unless `grad_dtype` says otherwise. Where "
        "`param.data` was replaced between backward and step, the old gradient stays, and the step fails "
        "obscurely or mixes dtypes."
    ),
    sources=("https://docs.pytorch.org/docs/stable/generated/torch.Tensor.grad.html",),
)


@on("look", RULE)
def compare(group: Group) -> None:
    pairs = [(parameter, parameter.grad) for parameter in group.parameters() if parameter.grad is not None]
    dtypes = [(p, plain(g.dtype), plain(p.dtype)) for p, g in pairs if g.dtype is not p.dtype and not _allowed(p, g)]
    devices = [(p, f"on {g.device}", f"on {p.device}") for p, g in pairs if g.device != p.device]
    for kind, wrong in ("dtype", dtypes), ("device", devices):
        if wrong:
            first, found, expected = wrong[0]
            facts = {"found": found, "expected": expected}
            group.add(RULE, facts, [parameter for parameter, _, _ in wrong], kind=kind, to_dtype=first.dtype)


def _allowed(parameter: Tensor, gradient: Tensor) -> bool:
    # None allows any. torch < 2.10: no grad_dtype, gradients have the parameter's; goes with that floor
    return getattr(parameter, "grad_dtype", parameter.dtype) in (None, gradient.dtype)


BAD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(4, 3)).mean().backward()
for parameter in model.parameters():
    parameter.data = parameter.data.to(torch.bfloat16)
optimizer.step()
""",
        at=12,
        prints="the gradients of `Linear.weight`, `Linear.bias` are float32, the parameters bfloat16",
        fix="convert the model before the first backward, or call `optimizer.zero_grad()` after converting it",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
mask = torch.tensor([[1.0, 0.0, 1.0]], dtype=torch.float64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(4, 3).to(model.weight.dtype)).mean().backward()
    if step == 1:
        model.weight.data = model.weight.data * mask
    optimizer.step()
""",
        at=15,
        prints="the gradients of `Linear.weight` are float32, the parameters float64",
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
for parameter in model.parameters():
    parameter.grad.data = parameter.grad.data.to(torch.bfloat16)
optimizer.step()
""",
        at=12,
        prints="the gradients of `Linear.weight`, `Linear.bias` are bfloat16, the parameters float32",
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
watched = dtypeguard.amp.watch(model, optimizer)
for parameter in model.parameters():
    parameter.data = parameter.data.to(torch.bfloat16)
model(torch.ones(4, 3, dtype=torch.bfloat16)).float().mean().backward()
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
model.double()
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
optimizer.zero_grad()
for parameter in model.parameters():
    parameter.data = parameter.data.double()
model(torch.ones(4, 3, dtype=torch.float64)).mean().backward()
optimizer.step()
"""
    ),
]
