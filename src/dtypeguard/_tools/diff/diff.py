"""`diff`: where two programs part, and whether it matters."""

import os
from collections.abc import Callable
from typing import Any

import torch

from ..._core.base.options import explained
from ..._core.base.progress import task
from ..._engine.watch.unrecorded import unrecorded
from ..calls import call_of
from ..compare.batches import Batch
from ..compare.draws import Draws
from .capture import Recorded, load, part, recorded, save
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
        sides = _side("a", a, given, draws), _side("b", b, given, draws)
        if isinstance(sides[0], Recorded) or isinstance(sides[1], Recorded):
            records = [side if isinstance(side, Recorded) else recorded(side) for side in sides]
            found = part(records[0], records[1], names)
        else:
            found = measure(*sides, names)
        if not draws.same:
            found.notes.append("the programs draw random numbers at different places, and differ by these too")
        if found.precision is torch.float32:
            found.notes.append("the reference is float32, as an operation refuses float64: small differences of the "
                               "function look like rounding")  # fmt: skip
        model = sides[1].model if isinstance(sides[1], Side) else None
        rows, first, verdict = rows_of(found, model)
        runs = tuple(side.runs if isinstance(side, Side) else 0 for side in sides)
        return ProgramDiff((sides[0].title, sides[1].title), rows, first, verdict, found, (runs[0], runs[1]))


@explained
@unrecorded
def capture(model: Any, /, batch: Any, path: str | os.PathLike[str]) -> None:
    """Write what the modules of a model get and return, for `diff` on another machine, engine or version.

    The file is of safetensors: loading it runs no code. Of large tensors it has samples, so it is about one percent of
    the activations. The model runs twice, once in float64; the model and the batch stay as they are.

    Args:
        model: a model or a function.
        batch: as for `diff`, which needs the same one.
        path: of the file.

    Raises:
        CompareError: the model does not run on the batch.
        OSError: the file cannot be written.

    >>> import tempfile, os, torch, dtypeguard
    >>> model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), torch.randn(4, 8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.safetensors")
    ...     dtypeguard.capture(model, x, path)
    ...     dtypeguard.diff(path, model, x).verdict
    'same'
    """
    with torch.inference_mode(False), task("capture"):
        save(recorded(Side("model", _program("model", model), _batch(batch), Draws())), path)


def _side(name: str, value: Any, batch: Batch, draws: Draws) -> Side | Recorded:
    if isinstance(value, str | os.PathLike):
        return load(value)
    return Side(name, _program(name, value), batch, draws)


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
