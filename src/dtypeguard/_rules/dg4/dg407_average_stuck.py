"""DG407 average-stuck."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG407",
    "average-stuck",
    Severity.WARNING,
    summary="An average of weights in half precision stands still, since its small steps are rounded away.",
    says=(
        "the average of {names} is {found} and does not move: {share:.0%} of the elements that differ from "
        "the model stayed as they were in {steps} steps"
    ),
    fix="keep the average in float32, whatever the model's dtype",
    why=(
        "An average with decay 0.999 moves by a thousandth of the difference. That is less than the "
        "spacing of bfloat16 (1/256) and float16 (1/1024) around most weights, so it stays at its first "
        "value for ever."
    ),
    sources=("https://github.com/d8ahazard/sd_dreambooth_extension/issues/1417",),
)

BAD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(8, 8, bias=False)
nn.init.ones_(model.weight)
average = {name: weight.detach().bfloat16() for name, weight in model.named_parameters()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer, averaged=average)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    for name, weight in model.named_parameters():
        average[name].mul_(0.999).add_(weight.detach(), alpha=0.001)
""",
        at=16,
        watched_at=14,
        prints="the average of `Linear.weight` is bfloat16 and does not move: 100% of the elements that differ from "
        "the model stayed as they were in 16 steps",
        fix="keep the average in float32, whatever the model's dtype",
    ),
    Program(
        """\
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

import dtypeguard

model = nn.Linear(8, 8, bias=False, dtype=torch.bfloat16)
nn.init.ones_(model.weight)
average = AveragedModel(model, avg_fn=get_ema_avg_fn(0.999))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer, averaged=average)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.ones(4, 8, dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()
    average.update_parameters(model)
""",
        at=16,
        watched_at=15,
        prints="the average of `weight` is bfloat16 and does not move: 100% of the elements that differ from the "
        "model stayed as they were in 8 steps",
    ),
    Program(
        """\
import copy

import torch
from torch import nn

import dtypeguard

student = nn.Linear(8, 8, bias=False)
nn.init.ones_(student.weight)
teacher = copy.deepcopy(student).half().requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(student, optimizer, averaged=teacher)
for _ in range(40):
    optimizer.zero_grad()
    student(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        for mine, theirs in zip(teacher.parameters(), student.parameters()):
            mine.lerp_(theirs.half(), 1e-4)
""",
        at=19,
        watched_at=16,
        prints="the average of `Linear.weight` is float16 and does not move: 100% of the elements that differ from "
        "the model stayed as they were in 16 steps",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(8, 8, bias=False)
nn.init.ones_(model.weight)
average = {name: weight.detach().bfloat16() for name, weight in model.named_parameters()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer, averaged=average)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    for name, weight in model.named_parameters():
        average[name] = 0.999 * average[name] + 0.001 * weight.detach().bfloat16()
""",
        at=16,
        watched_at=14,
        prints="the average of `Linear.weight` is bfloat16 and does not move: 100% of the elements that differ from "
        "the model stayed as they were in 32 steps",
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(8, 8, bias=False)
nn.init.ones_(model.weight)
average = {name: weight.detach().clone() for name, weight in model.named_parameters()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer, averaged=average)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    for name, weight in model.named_parameters():
        average[name].mul_(0.999).add_(weight.detach(), alpha=0.001)
""",
    ),
    Program(
        """\
import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

import dtypeguard

model = nn.Linear(8, 8, bias=False, dtype=torch.bfloat16)
nn.init.ones_(model.weight)
average = AveragedModel(copy.deepcopy(model).float(), avg_fn=get_ema_avg_fn(0.999))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer, averaged=average)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.ones(4, 8, dtype=torch.bfloat16)).square().mean().backward()
    optimizer.step()
    average.update_parameters(model)
""",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(8, 8, bias=False)
nn.init.ones_(model.weight)
average = {name: weight.detach().bfloat16() for name, weight in model.named_parameters()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer, averaged=average)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    for name, weight in model.named_parameters():
        average[name].mul_(0.5).add_(weight.detach(), alpha=0.5)
""",
    ),
]
