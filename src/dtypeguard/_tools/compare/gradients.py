"""What formats do to the gradients of a loss: a backward whose products have rounded operands too."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._core.base.errors import CompareError
from ..._core.contract.containers import tensors_in
from ..formats.table import Format
from .formatted import Formatted

_NOTHING = 1e-12  # of the square of all gradients: what float32 leaves of one that is zero, as of a key's bias


@dataclass(frozen=True, slots=True)
class Gradients:
    """The error of each parameter's gradient, the largest first, and that of all as one vector."""

    errors: dict[str, float]
    error: float


def gradients_of(subject: Formatted, assigned: Mapping[str, Format]) -> Gradients | None:
    """The error of gradients over all batches, with these formats by modules; None without a loss."""
    if subject.gradients is None:
        return None
    squares: dict[str, float] = {}
    sizes: dict[str, float] = {}
    if not subject.exact:
        subject.exact = [_gradients(subject, number, low=False) for number in range(len(subject.batches))]
    with subject.rounding(assigned):
        for number, exact in enumerate(subject.exact):
            low = _gradients(subject, number, low=True)
            for name in {**exact, **low}:  # a choice may give a gradient to others
                found, own = (of.get(name, torch.zeros(())) for of in (low, exact))
                squares[name] = squares.get(name, 0.0) + float((found - own).square().sum(dtype=torch.float64))
                sizes[name] = sizes.get(name, 0.0) + float(own.square().sum(dtype=torch.float64))
    size = sum(sizes.values())
    if not size:
        raise CompareError("compare: the gradients of loss= are zero, so there is nothing to compare")
    told = {name: square for name, square in squares.items() if sizes[name] > _NOTHING * size}
    errors = {name: math.sqrt(square / sizes[name]) for name, square in told.items()}
    ordered = dict(sorted(errors.items(), key=lambda item: -item[1] if item[1] == item[1] else -math.inf))
    return Gradients(ordered, math.sqrt(sum(squares.values()) / size))


def _gradients(subject: Formatted, number: int, low: bool) -> dict[str, Tensor]:
    """By parameter, of one batch."""
    model, found = subject.copy(), dict[str, Tensor]()
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def backward(out: Any, batch: Any) -> list[Tensor]:
        assert subject.gradients is not None
        loss = next(iter(tensors_in(subject.gradients(out, batch))), None)
        if loss is None or loss.numel() != 1:
            what = "no tensor" if loss is None else f"a tensor of shape {tuple(loss.shape)}"
            raise CompareError(f"compare: loss= gave {what}, and gradients need one number: average it, for example")
        if not parameters or not loss.requires_grad:
            why = "no parameter requires a gradient" if not parameters else "the loss does not depend on a parameter"
            raise CompareError(f"compare: {why}, so loss= has no gradients to compare: leave it out")
        try:
            given = torch.autograd.grad(loss, [*parameters.values()], allow_unused=True)
        except RuntimeError as error:
            told = f"{error}".partition("\n")[0]
            raise CompareError(f"compare: the backward of loss= fails: {told}") from error
        found.update((name, g.detach()) for name, g in zip(parameters, given, strict=True) if g is not None)
        return [loss.detach()]

    run = copy.copy(subject)
    run.loss = backward
    with torch.enable_grad():
        run.run(model, number, subject.batches[number].to(subject.dtype), low)
    return found
