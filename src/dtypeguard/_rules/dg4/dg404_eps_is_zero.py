"""DG404 eps-is-zero."""

from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity
from ...amp._optimizer import Group
from ._vanishes import find

RULE = Rule(
    "DG404",
    "eps-is-zero",
    Severity.ERROR,
    summary="An optimizer's eps is zero in the dtype of its parameters, so it divides by zero.",
    says="{key}={value:g} is 0 in {found}, the dtype of {names}",
    fix=("keep the parameters in float32 (autocast instead of `.half()`), or use a larger eps: 1e-4 in float16"),
    why=(
        "Adam divides by `sqrt(v) + eps`. In float16 1e-8 is 0, and squares of gradients below 2e-4 are 0 "
        "too: the first step divides by zero, and weights become inf or NaN."
    ),
    sources=("https://github.com/pytorch/pytorch/issues/8860",),
)


@on("look", RULE)
def look(group: Group) -> None:
    find(RULE, "eps", group)


BAD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1).half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.full((1, 4), 1e-4).half()).sum().backward()
optimizer.step()
""",
        at=10,
        prints="eps=1e-08 is 0 in float16, the dtype of `Linear.weight`, `Linear.bias`",
        fix=("keep the parameters in float32 (autocast instead of `.half()`), or use a larger eps: 1e-4 in float16"),
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1).half()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).half()).sum().backward()
optimizer.step()
""",
        at=10,
        prints="eps=1e-08 is 0 in float16, the dtype of `Linear.weight`, `Linear.bias`",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).half()
groups = [{"params": model[0].parameters(), "eps": 1e-4}, {"params": model[1].parameters(), "lr": 1e-4}]
optimizer = torch.optim.AdamW(groups, lr=1e-3)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).half()).sum().backward()
optimizer.step()
""",
        at=11,
        prints="eps=1e-08 is 0 in float16, the dtype of `Sequential.1.weight`, `Sequential.1.bias`",
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
watched = dtypeguard.amp.watch(model, optimizer)
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = model(torch.full((1, 4), 1e-4)).sum()
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
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).half()).sum().backward()
optimizer.step()
""",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(4, 1).bfloat16()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 4).bfloat16()).sum().backward()
optimizer.step()
""",
    ),
]
