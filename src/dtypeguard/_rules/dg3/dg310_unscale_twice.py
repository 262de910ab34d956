"""DG310 unscale-twice."""

from torch.amp.grad_scaler import OptState

from ..._watch.events import on
from ..._watch.rule import Program, Rule, Severity
from ...amp._scaling import Driven, Scaling

RULE = Rule(
    "DG310",
    "unscale-twice",
    Severity.ERROR,
    summary="`unscale_` is called twice on one optimizer in one iteration.",
    says="`unscale_` is called a second time on {optimizer} {since}",
    fix=("with gradient accumulation call `unscale_`, clip, `step` and `update` once, after the last micro-batch"),
    why=(
        "Gradients that are accumulated after `unscale_` are scaled and those before are not. PyTorch "
        "refuses the second call; leaving it out would mix both."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",
        "https://github.com/huggingface/transformers/issues/23935",
    ),
)


@on("unscale", RULE)
def again(driven: Driven, stage: OptState, scaling: Scaling) -> None:
    if stage is OptState.UNSCALED:
        losses = f"{driven.losses} scaled {'loss' if driven.losses == 1 else 'losses'}"
        since = f"({losses} since its last step, and no `update()` between)"
        scaling.find(RULE, "GradScaler.unscale_", {"optimizer": driven.watched.title, "since": since})


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
for inputs in torch.ones(2, 4, 3):
    scaler.scale(model(inputs).square().mean() / 2).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
""",
        at=12,
        prints="`unscale_` is called a second time on SGD (2 scaled losses since its last step, and no "
        "`update()` between)",
        fix=("with gradient accumulation call `unscale_`, clip, `step` and `update` once, after the last micro-batch"),
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
scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
scaler.unscale_(optimizer)
print("norm", model.weight.grad.norm().item())
scaler.unscale_(optimizer)
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
""",
        at=13,
        prints="`unscale_` is called a second time on SGD (1 scaled loss since its last step, and no "
        "`update()` between)",
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

generator, critic = nn.Linear(3, 3), nn.Linear(3, 1)
first = torch.optim.Adam(generator.parameters())
second = torch.optim.Adam(critic.parameters())
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch([generator, critic], [first, second], scaler)
scaler.scale(critic(generator(torch.ones(4, 3))).square().mean()).backward()
scaler.unscale_(first)
nn.utils.clip_grad_norm_(generator.parameters(), 1.0)
scaler.unscale_(first)
nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
""",
        at=14,
        prints="`unscale_` is called a second time on Adam (1 scaled loss since its last step, and no "
        "`update()` between)",
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
for inputs in torch.ones(2, 4, 3):
    scaler.scale(model(inputs).square().mean() / 2).backward()
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
    scaler.scale(model(torch.ones(4, 3)).square().mean()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
"""
    ),
    Program(
        """\
import torch
from torch import nn

import dtypeguard

generator, critic = nn.Linear(3, 3), nn.Linear(3, 1)
first = torch.optim.Adam(generator.parameters())
second = torch.optim.Adam(critic.parameters())
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch([generator, critic], [first, second], scaler)
scaler.scale(critic(generator(torch.ones(4, 3))).square().mean()).backward()
scaler.unscale_(first)
nn.utils.clip_grad_norm_(generator.parameters(), 1.0)
scaler.unscale_(second)
nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
scaler.step(first)
scaler.step(second)
scaler.update()
"""
    ),
]
