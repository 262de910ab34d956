"""DG405 decay-is-zero."""

from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity
from ...amp._optimizer import Group
from ._vanishes import find

RULE = Rule(
    "DG405",
    "decay-is-zero",
    Severity.WARNING,
    summary="A weight decay is zero in the dtype of the parameters, so nothing decays.",
    says="{key}={value:g} is 0 in {found}, the dtype of {names}",
    fix="keep the parameters in float32 (autocast instead of `.half()`), or use a larger weight decay",
    why="What is zero in the parameter's dtype decays nothing.",
    sources=("https://docs.pytorch.org/docs/stable/optim.html",),
)


@on("look", RULE)
def look(group: Group) -> None:
    find(RULE, "weight_decay", group)


BAD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-8)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).half()).mean().backward()
optimizer.step()
""",
        at=10,
        prints="weight_decay=1e-08 is 0 in float16, the dtype of `Linear.weight`, `Linear.bias`",
        fix="keep the parameters in float32 (autocast instead of `.half()`), or use a larger weight decay",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1).half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4, weight_decay=2e-8)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).half()).mean().backward()
optimizer.step()
""",
        at=10,
        prints="weight_decay=2e-08 is 0 in float16, the dtype of `Linear.weight`, `Linear.bias`",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).half()
groups = [{"params": model[0].parameters(), "weight_decay": 1e-9}, {"params": model[1].parameters()}]
optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-2)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).half()).mean().backward()
optimizer.step()
""",
        at=11,
        prints="weight_decay=1e-09 is 0 in float16, the dtype of `Sequential.0.weight`, `Sequential.0.bias`",
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-8)
watched = dtypeguard.amp.watch(model, optimizer)
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = model(torch.ones(8, 4)).mean()
loss.backward()
optimizer.step()
""",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-2)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).half()).mean().backward()
optimizer.step()
""",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1).bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-8)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).bfloat16()).mean().backward()
optimizer.step()
""",
    ),
]
