"""DG406 updates-lost."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG406",
    "updates-lost",
    Severity.WARNING,
    summary="Updates are smaller than the spacing of the parameters' dtype, so most weights do not move.",
    says=(
        "{share:.0%} of the elements of {found} parameters with a non-zero gradient did not move in a step "
        "of {optimizer} (lr={lr:g}): {names}"
    ),
    fix=(
        "keep float32 parameters and use autocast, or an optimizer with float32 master weights or stochastic rounding"
    ),
    why=(
        "bfloat16 has 8 bits of significand: an update smaller than 1/512 of the weight is rounded away, "
        "each step anew, and the loss stops falling for no visible reason."
    ),
    sources=(
        "https://arxiv.org/abs/2010.06192",
        "https://github.com/pytorch/torchtitan/issues/2881",
        "https://github.com/pytorch/pytorch/issues/191763",
    ),
)

BAD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(8, 8, dtype=torch.bfloat16)
nn.init.ones_(model.weight)
nn.init.ones_(model.bias)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 8, dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()
""",
        at=14,
        prints="100% of the elements of bfloat16 parameters with a non-zero gradient did not move in a step of AdamW "
        "(lr=1e-05): `Linear.weight`, `Linear.bias`",
        fix=(
            "keep float32 parameters and use autocast, or an optimizer with float32 master weights or "
            "stochastic rounding"
        ),
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Embedding(10, 4).to(torch.bfloat16)
nn.init.constant_(model.weight, 0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.arange(10)).square().mean().backward()
    optimizer.step()
""",
        at=13,
        prints="100% of the elements of bfloat16 parameters with a non-zero gradient did not move in a step of SGD "
        "(lr=0.001): `Embedding.weight`",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)).half()
nn.init.ones_(model[0].weight)
nn.init.ones_(model[0].bias)
groups = [{"params": model[0].parameters(), "lr": 1e-5}, {"params": model[1].parameters(), "lr": 1e-2}]
optimizer = torch.optim.Adam(groups, eps=1e-4)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 8).half()).square().mean().backward()
    optimizer.step()
""",
        at=15,
        prints="100% of the elements of float16 parameters with a non-zero gradient did not move in a step of Adam "
        "(lr=1e-05): `Sequential.0.weight`, `Sequential.0.bias`",
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(8, 8)
nn.init.ones_(model.weight)
nn.init.ones_(model.bias)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(40):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(torch.ones(4, 8))
    output.float().square().mean().backward()
    optimizer.step()
""",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(8, 8, dtype=torch.bfloat16)
nn.init.ones_(model.weight)
nn.init.ones_(model.bias)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 8, dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()
""",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(8, 8, dtype=torch.bfloat16)
masters = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
optimizer = torch.optim.SGD(masters, lr=1e-5)
watched = dtypeguard.amp.watch(model, optimizer)
for _ in range(40):
    model.zero_grad()
    model(torch.ones(4, 8, dtype=torch.bfloat16)).square().mean().backward()
    for parameter, master in zip(model.parameters(), masters):
        master.grad = parameter.grad.float()
    optimizer.step()
    with torch.no_grad():
        for parameter, master in zip(model.parameters(), masters):
            parameter.copy_(master)
""",
    ),
]
