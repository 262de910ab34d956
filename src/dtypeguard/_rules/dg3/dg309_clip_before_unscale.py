"""DG309 clip-before-unscale."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG309",
    "clip-before-unscale",
    Severity.ERROR,
    summary="Gradients are clipped while they are still multiplied by the scale.",
    says=(
        "gradients of {names} were clipped {how} while still multiplied by the scale {scale:g}: after "
        "unscaling the bound is {bound:.3g}"
    ),
    fix="`scaler.unscale_(optimizer)` before `clip_grad_norm_` or `clip_grad_value_`",
    why=(
        "After `scaler.scale(loss).backward()` gradients are tens of thousands of times too large. "
        "Clipping them then nearly always clips, and unscaling makes the step that many times too small: "
        "with SGD training stands still. Adam scales most of it away again, but every gradient has the "
        "norm of the bound then, and comes close to eps."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping",
        "https://github.com/Lightning-AI/pytorch-lightning/issues/9330",
    ),
)

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
for inputs in torch.linspace(-1, 1, 36).view(3, 4, 3):
    optimizer.zero_grad()
    scaler.scale((model(inputs) - 3).square().mean()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
        at=13,
        heard=14,
        prints="gradients of `Linear.weight`, `Linear.bias` were clipped to norm 1 while still multiplied by the"
        " scale 65536: after unscaling the bound is 1.53e-05",
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
for inputs in torch.linspace(-1, 1, 24).view(2, 4, 3):
    scaler.scale((model(inputs) - 3).square().mean() / 2).backward()
nn.utils.clip_grad_value_(model.parameters(), 0.5)
scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()
""",
        at=12,
        heard=13,
        prints="gradients of `Linear.weight`, `Linear.bias` were clipped to values between -0.5 and 0.5 while "
        "still multiplied by the scale 65536: after unscaling the bound is 7.63e-06",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
watched = dtypeguard.amp.watch(model, optimizer, scaler)
scaler.scale((model(torch.ones(4, 3)) - 3).square().mean()).backward()
for parameter in model.parameters():
    parameter.grad.clamp_(-1, 1)
scaler.step(optimizer)
scaler.update()
""",
        at=12,
        heard=13,
        prints="gradients of `Linear.weight`, `Linear.bias` were clipped to values between -1 and 1 while still "
        "multiplied by the scale 1024: after unscaling the bound is 0.000977",
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
for inputs in torch.linspace(-1, 1, 36).view(3, 4, 3):
    optimizer.zero_grad()
    scaler.scale((model(inputs) - 3).square().mean()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
for step in range(3):
    optimizer.zero_grad()
    scaler.scale((model(torch.ones(4, 3)) - 3).square().mean()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0 * scaler.get_scale())
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
tokens = [317, 512, 401]
for count in tokens:
    optimizer.zero_grad()
    scaler.scale((model(torch.ones(4, 3)) - 3).square().sum()).backward()
    for parameter in model.parameters():
        parameter.grad.div_(count)
    scaler.step(optimizer)
    scaler.update()
"""
    ),
]
