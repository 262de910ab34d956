"""DG301 scaler-float16-parameters."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG301",
    "scaler-float16-parameters",
    Severity.ERROR,
    summary="A GradScaler is used with float16 parameters, whose gradients it refuses.",
    says="{names} ({share} trainable parameters) are float16, and a GradScaler refuses float16 gradients",
    fix=(
        "keep the parameters in float32 (`model.float()` before the optimizer is built) and run the "
        "forward under `torch.autocast({device!r}, dtype=torch.float16)`"
    ),
    why=(
        "A GradScaler divides gradients by the scale in place, and float16 gradients have lost what the "
        'scale was to save: `unscale_` refuses them with "Attempting to unscale FP16 gradients", after the '
        "first backward. Mixed precision keeps float32 master weights, and lets autocast cast them for "
        "each operation."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",
        "https://github.com/haotian-liu/LLaVA/issues/363",
    ),
)

BAD = [
    Program(
        """\
import torch
from torch import nn

import dtypeguard

model = nn.Linear(3, 1).half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(model, optimizer, scaler)
for step in range(3):
    loss = model(torch.ones(4, 3, dtype=torch.float16)).float().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
        at=13,
        prints="`Linear.weight`, `Linear.bias` (2 of 2 trainable parameters) are float16, and a GradScaler refuses float16 "
        "gradients",
    ),
]
GOOD: list[Program] = []
