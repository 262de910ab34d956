"""DG401 stale-parameters."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG401",
    "stale-parameters",
    Severity.ERROR,
    summary="The optimizer holds tensors that the model no longer has as parameters, and moves these in vain.",
    says="{optimizer} holds {count} that the model {model} does not have{missing}",
    fix=(
        "build the optimizer after the last change of the model (new head, PEFT, parametrization, "
        "`fully_shard`, `load_state_dict(assign=True)`), or `optimizer.add_param_group` for what is new; "
        "parameters of a loss or of a second model: `watch([model, other], ...)`"
    ),
    why=(
        "An optimizer keeps the parameters that it was given. Replace a layer afterwards and it steps on "
        "tensors that nothing computes with, while the new ones never move."
    ),
    sources=("https://docs.pytorch.org/docs/stable/optim.html#constructing-it",),
)

BAD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model[2] = nn.Linear(4, 2)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()
""",
        at=13,
        prints="SGD holds 2 of 4 parameters that the model Sequential does not have, and lacks "
        "`Sequential.2.weight`, `Sequential.2.bias`",
        fix=(
            "build the optimizer after the last change of the model (new head, PEFT, parametrization, "
            "`fully_shard`, `load_state_dict(assign=True)`), or `optimizer.add_param_group` for what is new; "
            "parameters of a loss or of a second model: `watch([model, other], ...)`"
        ),
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
checkpoint = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
model.load_state_dict(checkpoint, assign=True)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()
""",
        at=14,
        prints="AdamW holds 2 of 2 parameters that the model Linear does not have, and lacks `Linear.weight`, "
        "`Linear.bias`",
    ),
    Program(
        """\
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
weight_norm(model[2])
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()
""",
        at=14,
        prints="AdamW holds 1 of 4 parameters that the model Sequential does not have, and lacks "
        "`Sequential.2.parametrizations.weight.original0`, `Sequential.2.parametrizations.weight.original1`",
    ),
    Program(
        """\
import copy

import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model = copy.deepcopy(model)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(8, 3)).square().mean().backward()
    optimizer.step()
""",
        at=15,
        prints="SGD holds 2 of 2 parameters that the model Linear does not have, and lacks `Linear.weight`, "
        "`Linear.bias`",
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 10))
model[2] = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
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

model = nn.Linear(3, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
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

model, temperature = nn.Linear(3, 2), nn.Parameter(torch.ones(()))
optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(4):
    optimizer.zero_grad()
    (model(torch.ones(8, 3)) * temperature).square().mean().backward()
    optimizer.step()
""",
    ),
]
