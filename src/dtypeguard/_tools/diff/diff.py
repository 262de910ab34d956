"""`diff`: where two programs part, and whether it matters."""

import itertools
import math
import os
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..._core.base.dtypes import name_of
from ..._core.base.errors import CompareError
from ..._core.base.options import explained, kind_of, refuse_maker
from ..._core.base.progress import task
from ..._engine.watch.unrecorded import unrecorded
from ..compare.batches import Batch, batch_of
from ..compare.compare import with_batch
from ..compare.draws import Draws
from ..compare.subject import Loss
from .backward import Gradient, gradients
from .capture import Recorded, load, part, recorded, save
from .compiled import Compiled, is_compiled
from .distances import Dtypes, in_own_roundings, in_samples, without_padding
from .match import Names
from .measure import Found, measure
from .points import Point
from .result import ProgramDiff, rows_of
from .side import Side, in_tf32
from .tape import Tape
from .tokens import Token, against, judged, listed, logits_of, tokens_of
from .wide import Wide


@explained
@unrecorded
def diff(a: Any, b: Any, /, batch: Any, *, names: Names = None, loss: Callable[..., Any] | None = None) -> ProgramDiff:
    """Find where two programs part that should compute the same: a port and its original, compiled and eager.

    Each module of b runs on what the module of a got that it stands for, so a difference is seen where it is added. It
    runs in float64 too: what still differs there is another function, however small; what is equal there is rounding,
    and the distance to float64 says who rounds worse. Copies of the models run: the models, the batch and the random
    numbers of the program stay as they are. A function runs itself, and what it changes outside stays changed.

    Args:
        a: a model, a function, or the path of a `capture` of a model.
        b: a model, a function, or the path of a capture; or of a JSON file with the log probability of each token.
        batch: a tensor, a tuple of arguments, or a dict of keyword arguments, for both.
        names: which modules have other names: a dict of patterns, `{"encoder.layer.*": "blocks.*"}`, or a
            function of a's names that gives b's, or None. Modules that are not named are matched by their names, their
            weights, what is in them, and the order of their calls.
        loss: a function of the output, or of the output and the batch: compare gradients too, of parameters and of
            what in the batch requires them; of functions those of all that is floating in the batch.

    Returns:
        The verdict, the first module that parts, and a row for each module.

    Raises:
        CompareError: one of the programs does not run on the batch, or their outputs have nothing in common.
        DeviceError: a tensor of the batch is on meta.
        TypeError, ValueError, OSError: an argument is of the wrong type, or no capture.

    >>> import copy, torch, dtypeguard
    >>> a = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU())
    >>> b = copy.deepcopy(a)
    >>> b[1].eps = 1e-3
    >>> d = dtypeguard.diff(a, b, torch.randn(4, 8))
    >>> d.verdict, d.where and d.where.name
    ('another function', '1')
    """
    given, draws, own = batch_of(batch, "diff"), Draws(), _loss(loss)
    mask = _mask(given)
    with torch.inference_mode(False), task("diff"), without_padding(mask):
        if isinstance(a, str | os.PathLike) and _read("a", listed, a) is not None:
            raise TypeError(f"diff: {a} holds log probabilities, which come second: diff(model, {str(a)!r}, batch)")
        first = _side("a", a, given, draws, own)
        probabilities = _read("b", listed, b) if isinstance(b, str | os.PathLike) else None
        if probabilities is not None:
            return _engine(first, probabilities, str(b))
        second = _side("b", b, given, draws, own)
        if isinstance(first, Side) and isinstance(second, Side):
            with in_own_roundings(first.dtype, second.dtype) as dtypes:
                made = _live(first, second, names, dtypes)
        elif loss is not None:
            raise ValueError("diff: a capture has no gradients, which a loss asks for: pass two models")
        else:
            for side, other in ((first, second), (second, first)):
                if isinstance(side, Side) and isinstance(other, Recorded):
                    side.takes = _taken(side, other.dtypes)
            records = [side if isinstance(side, Recorded) else recorded(side) for side in (first, second)]
            with in_samples(), in_own_roundings(records[0].dtype, records[1].dtype) as dtypes:
                found = part(records[0], records[1], names)
                found.dtypes = dtypes
                made = _result_of(first, second, found)
        made.runs = tuple(side.runs if isinstance(side, Side) else 0 for side in (first, second))
        made.notes += [note for side in (first, second) if isinstance(side, Side) for note in in_tf32(side)]
        if not draws.same:
            made.notes.append("the programs draw random numbers at different places, and differ by these too")
        if mask is not None and not bool(mask.all()):
            made.notes.append(f"{int((mask == 0).sum())} places that the attention mask leaves out were not compared")
        return made


def _live(a: Side, b: Side, names: Names, dtypes: Dtypes | None) -> ProgramDiff:
    """Two programs that are here."""
    for side, other in ((a, b), (b, a)) if dtypes else ():
        side.takes = _taken(side, {other.dtype})
    found = measure(a, b, names)
    found.notes += [f"{side.name} got the batch in {name_of(side.takes)}" for side in (a, b) if side.takes is not None]
    _check_values(found.outputs[:2])
    found.dtypes = dtypes
    if found.precision is torch.float32:
        found.notes.append(
            "the reference is float32, as one does not run in float64: small differences of the function look like "
            "rounding"
        )
    grads: tuple[Gradient, ...] = ()
    behind: Point | None = None
    if a.loss is not None:
        grads, behind, left = gradients(a, b, found)
        if left:
            found.notes.append(
                f"the gradients of {left} parameters of b were not compared: no module of a has the same"
            )
    made = _result_of(a, b, found, behind)
    for side in (a, b):
        if is_compiled(side):
            compiled = Compiled(side, found)
            made.add_compiled(compiled)
            found.outputs["ab".index(side.name)] = compiled.outputs
    made.add_gradients(grads)
    made.tokens = _tokens(found, a.batch)
    return made


def _taken(side: Side, dtypes: Collection[torch.dtype | None]) -> torch.dtype | None:
    """The dtype to which the batch is cast for a program, where it is in the other one's."""
    given = {tensor.dtype for _, tensor in side.batch.tensors() if tensor.is_floating_point()}
    return side.dtype if given and given == {*dtypes} and side.dtype not in given else None


def _check_values(outputs: list[list[Tensor]]) -> None:
    """Outputs that tell no programs apart: two that both give NaN are the same one, or any two."""
    known = [one for one in outputs[0] + outputs[1] if one.numel()]
    if not known:
        raise CompareError("diff: the outputs have no values, so there is nothing to compare: look at the batch")
    if not any(bool(one.isfinite().any()) for one in known):
        raise CompareError(
            "diff: no value of the outputs is finite, so there is nothing to compare: look at the batch and at the "
            "weights"
        )


def _result_of(a: Side | Recorded, b: Side | Recorded, found: Found, behind: Point | None = None) -> ProgramDiff:
    rows, where, verdict = rows_of(found, b.model if isinstance(b, Side) else None, behind)
    return ProgramDiff((a.title, b.title), rows, where, verdict, found)


@explained
@unrecorded
def capture(model: Any, /, batch: Any, path: str | os.PathLike[str]) -> None:
    """Write what the modules of a model get and return, for `diff` on another machine, engine or version.

    The file is of safetensors: loading it runs no code. Of large tensors it has samples, so it is about one percent of
    the activations. The model runs twice, once in float64; the model and the batch stay as they are.

    Args:
        model: a model or a function.
        batch: as for `diff`, which needs the same one.
        path: the path of the file.

    Raises:
        CompareError: the model does not run on the batch.
        TypeError: the model does not take the batch.
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
        side = Side("model", _program("model", model, "capture"), batch_of(batch, "capture"), Draws(), tool="capture")
        save(recorded(side), path)


T = TypeVar("T")


def _side(name: str, value: Any, batch: Batch, draws: Draws, loss: Loss | None) -> Side | Recorded:
    if isinstance(value, str | os.PathLike):
        return _read(name, load, value)
    return Side(name, _program(name, value), batch, draws, loss)


def _read(name: str, reader: Callable[..., T], path: str | os.PathLike[str]) -> T:
    """What a file holds that stands for a or b."""
    try:
        return reader(path)
    except ValueError as error:
        raise ValueError(f"diff: {name}, {error}") from error


def _mask(batch: Batch) -> Tensor | None:
    """The attention mask, as transformers has it: 1 for tokens, 0 for padding."""
    mask = batch.kwargs.get("attention_mask")
    return mask if isinstance(mask, Tensor) and mask.ndim == 2 and not mask.is_floating_point() else None


def _tokens(found: Found, batch: Batch) -> tuple[Token, ...]:
    """Where both return logits of the tokens of the batch."""
    known = [logits_of(out, batch) for out in found.outputs]
    if len(known) != 4 or any(one is None for one in known):
        return ()
    low_a, low_b, wide_a, wide_b = (out[one[0]] for out, one in zip(found.outputs, known, strict=True) if one)
    if low_a.shape != low_b.shape or not known[0]:
        return ()
    tokens, mask = tokens_of((low_a, low_b), (wide_a, wide_b), known[0][1]), _mask(batch)
    if mask is None or mask.shape != known[0][1].shape:
        return tokens
    read = mask.bool().tolist()
    return tuple(one for one in tokens if read[one.sequence][one.position - 1] and read[one.sequence][one.position])


def _engine(side: Any, rows: list[list[float]], path: str) -> ProgramDiff:
    """A model beside the log probabilities that an engine has given its tokens."""
    if isinstance(side, Recorded):
        raise TypeError("diff: a is a capture, and b a list of log probabilities: pass the model")
    out = side.run(side.copy(), Tape())
    wide = side.run(side.wide(torch.float64, {}), Tape(), wide=Wide(torch.float64))
    known = logits_of(out, side.batch)
    if known is None:
        raise CompareError(
            "diff: log probabilities need logits of shape (sequences, tokens, vocabulary) and the tokens in the batch: "
            f"{side.title} returns {', '.join(str(list(t.shape)) for t in out)}"
        )
    place, ids = known
    tokens, error_a, error_b, unit, apart = against(rows, out[place], wide[place], ids)
    half = side.run(side.wide(torch.bfloat16, {}), Tape(), dtype=torch.bfloat16)[place]
    halves, half_error, *_ = against(rows, half, wide[place], ids)
    verdict, counts = judged((error_a, error_b), unit, tokens, half_error, halves)
    found = Found(errors=(error_a, error_b), distance=apart, output_roundings=counts)
    found.notes.append(
        "the engine's float64 is not known: it is another function where it is more than 8 times as far from the "
        "model's as the model in bfloat16 is"
    )
    if unknown := sum(map(math.isnan, itertools.chain(*rows))):
        found.notes.append(f"{unknown} numbers in {path} are null, and were not compared")
    made = ProgramDiff((side.title, path), [], None, verdict, found)
    made.runs = side.runs, 0
    made.tokens = tokens
    return made


def _loss(loss: Any) -> Loss | None:
    """The loss as a function of the output and the batch."""
    if loss is not None and not callable(loss):
        raise TypeError(f"diff: `loss` is {kind_of(loss)}: pass a function of the output")
    own = with_batch(loss, "diff")

    def checked(out: Any, batch: Batch) -> Any:
        value = own(out, batch)
        if not (isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad):
            raise TypeError("diff: `loss` must return one number that has a gradient")
        return value

    return None if loss is None else checked


def _program(name: str, value: Any, tool: str = "diff") -> Any:
    refuse_maker(tool, value)
    if not callable(value):
        other = ", or the path of a capture" * (tool == "diff")
        raise TypeError(f"{tool} takes a model or a function{other} as {name}, not {kind_of(value)}")
    return value
