"""What `amp.watch` costs in a training step with 200 parameters."""

from collections.abc import Callable
from typing import Any

import torch
from bars import Context
from report import Row, Table, at_most, duration, times
from timing import interleave
from torch import Tensor, nn

from dtypeguard import amp

LAYERS, WIDTH, BLOCK = 100, 16, 50  # two parameters a layer; a block holds one look at everything
STEP, SHARE = 3e6, 0.01  # ns, and how much of it a watch may take


def loop(optimizer: type[torch.optim.Optimizer], scaled: bool, watched: bool, still: bool = False) -> Callable[[], Any]:
    """Fifty steps of one kind."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    stepper = optimizer(model.parameters(), lr=0.0 if still else 1e-3)  # type: ignore[call-arg]
    scaler = torch.amp.GradScaler("cpu") if scaled else None
    x = torch.randn(4, WIDTH)

    def backward() -> None:
        stepper.zero_grad()
        loss: Tensor = model(x).square().mean()
        (loss if scaler is None else scaler.scale(loss)).backward()

    def step() -> None:
        if scaler is None:
            stepper.step()
        else:
            scaler.step(stepper)
            scaler.update()

    if watched:
        handle = amp.watch(model, stepper, scaler, ignore=["DG304"])
        stepper.handle = handle  # type: ignore[attr-defined]
    for _ in range(2 * BLOCK):  # past the steps at which a watch looks early
        backward()
        step()

    def block() -> None:
        for _ in range(BLOCK):
            if not still:
                backward()
            step()

    return block


def watching(context: Context) -> Table:
    """A watched training step."""
    table = Table(
        "`amp.watch`, 200 parameters",
        f"Blocks of {BLOCK} steps of {LAYERS} `Linear({WIDTH}, {WIDTH})`, of which one looks at everything. The hooks "
        f"alone: steps without forward and backward. Their bar is {SHARE:.0%} of a step of {duration(STEP)}.",
        ("step", "a step", "against unwatched"),
    )
    hooks = interleave(
        {name: (loop(torch.optim.SGD, False, name == "watched", True), ()) for name in ("bare", "watched")}, 3
    )
    table.rows += context.absolute("hooks alone", hooks.extra("watched", "bare") / BLOCK, SHARE * STEP)
    for what, optimizer, scaled in (
        ("SGD", torch.optim.SGD, False),
        ("Adam", torch.optim.Adam, False),
        ("SGD with GradScaler", torch.optim.SGD, True),
    ):
        samples = interleave(
            {name: (loop(optimizer, scaled, name == "watched"), ()) for name in ("bare", "watched")}, 20
        )
        ratio = samples.ratio("watched", "bare")
        bare = duration(samples.median("bare") / BLOCK)
        bar = at_most(1 + SHARE, times(1 + SHARE))
        table.rows.append(Row(what, bare, times(ratio), bar, ratio))
    return table
