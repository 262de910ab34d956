"""DG403 state-differs."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG403",
    "state-differs",
    Severity.ERROR,
    summary="The state of an optimizer has another dtype than its parameters, or is on another device.",
    says="state {keys} of {names} is {found}, the parameters are {expected}",
    fix=(
        "convert or move the model before the optimizer is built; after a change build it anew, or "
        "`optimizer.load_state_dict(optimizer.state_dict())` to cast its state"
    ),
    why=(
        "`model.half()` and `model.to()` change parameters in place and leave the optimizer's state as it "
        'was. The next step fails with "expected dtype float for `end` but got dtype c10::Half", or mixes '
        "dtypes in silence."
    ),
    sources=("https://github.com/pytorch/pytorch/issues/7844",),
)

BAD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-4)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 3)).square().mean().backward()
optimizer.step()
model.half()
optimizer.zero_grad()
model(torch.ones(8, 3).half()).square().mean().backward()
optimizer.step()
""",
        at=14,
        prints="state `exp_avg`, `exp_avg_sq` of `Linear.weight`, `Linear.bias` is float32, the parameters are float16",
        fix=(
            "convert or move the model before the optimizer is built; after a change build it anew, or "
            "`optimizer.load_state_dict(optimizer.state_dict())` to cast its state"
        ),
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 3)).square().mean().backward()
optimizer.step()
optimizer.zero_grad()
model.to(torch.float64)
model(torch.ones(8, 3, dtype=torch.float64)).square().mean().backward()
optimizer.step()
""",
        at=14,
        prints="state `momentum_buffer` of `Linear.weight`, `Linear.bias` is float32, the parameters are float64",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
model.bfloat16()
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 3).bfloat16()).square().mean().backward()
optimizer.step()
""",
        at=11,
        prints="state `sum` of `Linear.weight`, `Linear.bias` is float32, the parameters are bfloat16",
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-4)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 3)).square().mean().backward()
optimizer.step()
model.half()
optimizer.load_state_dict(optimizer.state_dict())
optimizer.zero_grad()
model(torch.ones(8, 3).half()).square().mean().backward()
optimizer.step()
""",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1).bfloat16()
optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 3).bfloat16()).square().mean().backward()
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
watched = dtypeguard.amp.watch(model, optimizer)
model(torch.ones(8, 3)).square().mean().backward()
optimizer.step()
optimizer.zero_grad()
model.to(torch.float64)
model(torch.ones(8, 3, dtype=torch.float64)).square().mean().backward()
optimizer.step()
""",
    ),
]
