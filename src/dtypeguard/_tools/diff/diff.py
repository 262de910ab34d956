"""`diff`: where two programs part, and whether it matters."""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..._core.base.errors import CompareError
from ..._core.base.options import explained
from ..._core.base.progress import task
from ..._engine.watch.unrecorded import unrecorded
from ..calls import call_of
from ..compare.batches import Batch
from ..compare.draws import Draws
from .match import Names
from .measure import measure
from .result import ProgramDiff, rows_of
from .side import Side


@explained
@unrecorded
def diff(a: Any, b: Any, /, batch: Any, *, names: Names = None, loss: Callable[..., Any] | None = None) -> ProgramDiff:
    """Find where two programs part that should compute the same: a port and its original, compiled and eager.

    Each module of b runs on what the module of a got that it stands for, so a difference is seen where it is added. It
    runs in float64 too: what still differs there is another function, however small; what is equal there is rounding,
    and the distance to float64 says who rounds worse. Copies of the models run: the models, the batch and the random
    numbers of the program stay as they are.

    Args:
        a: a model, a function, or the path of a `capture` of a model.
        b: a model, a function, or the path of a capture; or of a JSON file with the log probability of each token.
        batch: a tensor, a tuple of arguments, or a dict of keyword arguments, for both.
        names: of modules that are called otherwise: a dict of patterns, `{"encoder.layer.*": "blocks.*"}`, or a
            function of a's names that gives b's, or None. Modules that are not named are matched by their names, their
            weights, what is in them, and the order of their calls.
        loss: a function of the output, or of the output and the batch: compare gradients too.

    Returns:
        The verdict, the first module that parts, and a row for each module.

    Raises:
        CompareError: one of the programs does not run on the batch, or their outputs have nothing in common.
        TypeError, ValueError, OSError: an argument is of the wrong type, or no capture.

    >>> import copy, torch, dtypeguard
    >>> a = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU())
    >>> b = copy.deepcopy(a)
    >>> b[1].eps = 1e-3
    >>> d = dtypeguard.diff(a, b, torch.randn(4, 8))
    >>> d.verdict, d.where.name
    ('another function', '1')
    """
    given, draws = _batch(batch), Draws()
    with torch.inference_mode(False), task("diff"):
        sides = Side("a", _program("a", a), given, draws), Side("b", _program("b", b), given, draws)
        found = measure(*sides, names)
        if not draws.same:
            found.notes.append("the programs draw random numbers at different places, and differ by these too")
        if found.precision is torch.float32:
            found.notes.append("the reference is float32: an operation refuses float64, so small differences of the "
                               "function look like rounding")  # fmt: skip
        rows, first, verdict = rows_of(found, sides[1].model)
        return ProgramDiff((sides[0].title, sides[1].title), rows, first, verdict, found, (sides[0].runs, sides[1].runs))


def _program(name: str, value: Any) -> Any:
    if isinstance(value, type) or not callable(value):
        kind = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        raise TypeError(f"diff: {name} is {kind}: pass a model, a function, or the path of a capture")
    return value


def _batch(batch: Any) -> Batch:
    try:
        return Batch(*call_of(batch), batch)
    except TypeError:
        raise TypeError(
            f"diff: `batch` is of type {type(batch).__name__}: pass a tensor, a tuple of arguments or a dict of "
            "keyword arguments"
        ) from None
