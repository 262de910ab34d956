"""`dryrun`: in which dtypes does a model run, and what comes out."""

import inspect
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .._base.dtypes import BY_NAME, FLOATING, name_of
from .._base.errors import AnnotationError
from .._base.options import several
from .._base.progress import progress
from .._calls import Inputs, aside, call_of, read_as
from .._contract.anchor import anchor_of
from .._doors.forward import root_of
from .._watch.apart import apart
from .._watch.mode import unheard
from .._watch.unrecorded import unrecorded
from .cells import DryrunCell, Runner
from .table import DryrunTable
from .twin import Original

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_REGIONS = (None, torch.float16, torch.bfloat16)


@unrecorded
def dryrun(
    model: nn.Module,
    /,
    *example: Any,
    dtypes: torch.dtype | str | Iterable[torch.dtype | str] | None = None,
    autocast: torch.dtype | str | Iterable[torch.dtype | str | None] | None = None,
    device: torch.device | str | None = None,
    **kwargs: Any,
) -> DryrunTable:
    """In which dtypes a model runs, and what comes out, without its memory and without computing it.

    Each combination of the parameters' dtype, the inputs' dtype and an autocast region is a cell. In each cell the
    model's own code is run on a copy that holds no weights. What is small (ids, masks, positions, a small model) is
    computed, since it may decide which way the code goes. Of a large tensor only dtype and sizes are known; whether an
    operation takes such operands is asked of its real kernel, with tensors of size 1. The model may be on meta.

    Args:
        model: the model; neither it nor its weights change, and nothing of it is kept.
        example: a batch as `compare` takes it: a tensor, a tuple of positional or a dict of keyword arguments,
            `(value,)` for one argument that is a dict or a tuple itself. Or several values: the positional arguments.
            Tensors of any floating dtype and of any shape that the model takes; they may be on meta. Default: inputs
            are drawn from the annotations of its forward.
        dtypes: the dtype of parameters and floating inputs, or its name, or several; default: float32, float64,
            float16 and bfloat16.
        autocast: the dtype of an autocast region, or several, with None for no region; default: None, float16 and
            bfloat16.
        device: whose kernels are asked; default: the GPU if there is one, else the CPU.
        kwargs: the keyword arguments of a call. An argument of forward that is named like one of the options above is
            passed by position, or in a dict.

    Returns:
        The table. `print(table)` shows it, `table["bfloat16", "float32", None]` is one cell.

    Raises:
        TypeError, ValueError: for bad arguments; and if there is no example, for a model without annotations.
        Exceptions of the model: what it raises with its own dtype that is not about dtypes, as for a wrong shape. A
            note names the cell.

    >>> import torch, dtypeguard
    >>> table = dtypeguard.dryrun(torch.nn.Linear(4096, 4096), torch.empty(2, 4096, device="meta"), device="cpu")
    >>> table["bfloat16", "bfloat16", None].status, table["bfloat16", "bfloat16", None].outputs
    ('runs', (torch.bfloat16,))
    >>> table["bfloat16", "float32", None].status, table["bfloat16", "float32", None].repairs
    ('repaired', ('`input` of Linear.forward from float32 to bfloat16',))
    >>> table.assert_runs("bfloat16")
    """
    original, root = Original(model), root_of(model)
    asked = _several("dtypes", _DTYPES if dtypes is None else dtypes, FLOATING)
    regions = _several("autocast", _REGIONS if autocast is None else autocast, _REGIONS)
    place = _place(device)
    with unheard(), apart(), aside():
        inputs = _inputs(root, example, kwargs)
        anchor = anchor_of(root)
        own = None if anchor is None else anchor.dtype
        rows = (None,) if anchor is None else asked if own is not None else (*asked, None)
        columns = asked if inputs.floats() else (None,)
        cells = [DryrunCell(row, column, region) for row, region, column in itertools.product(rows, regions, columns)]
        runner = Runner(original, inputs, place)
        first = next((cell for cell in cells if cell.parameters is own and cell.inputs in (own, None)), cells[0])
        for cell in progress(f"dryrun({type(root).__name__})", sorted(cells, key=lambda cell: cell is not first)):
            error = runner.fill(cell)
            if cell is first and error is not None:
                error.add_note(f"dtypeguard.dryrun, {cell}")
                raise error
    return DryrunTable(type(root).__name__, place, cells)


def _inputs(root: nn.Module, example: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
    """The example; where there is none, one that is drawn from annotations."""
    name, signature = type(root).__name__, inspect.signature(root.forward)
    read = read_as(example[0]) if len(example) == 1 else ""
    if len(example) == 1 and isinstance(example[0], tuple | Mapping | inspect.BoundArguments):
        example, named = call_of(example[0])
        twice = ", ".join(map(repr, named.keys() & kwargs.keys()))
        if twice:
            raise TypeError(f"dryrun({name}) got {twice} twice: in the dict, and as keyword argument")
        kwargs = {**named, **kwargs}
    if not example and not kwargs and signature.parameters:
        return _drawn(root, name, signature)
    try:
        signature.bind(*example, **kwargs)
    except TypeError as error:
        raise TypeError(f"{name}.forward{signature} does not take this example: {error}{read}") from None
    return Inputs(signature, example, kwargs)


def _drawn(root: nn.Module, name: str, signature: inspect.Signature) -> Inputs:
    """The simplest arguments that match the annotations, with tensors that are not empty."""
    try:
        from hypothesis import HealthCheck, find, settings

        from ..testing import inputs_for

        checks: Any = list(HealthCheck)
        quiet = settings(database=None, deadline=None, derandomize=True, suppress_health_check=checks)
        bound = find(
            inputs_for(root).map(lambda found: Inputs(signature, found.args, found.kwargs)),
            lambda found: bool(found.tensors()) and all(leaf.tensor.numel() for leaf in found.tensors()),
            settings=quiet,
        )
    except Exception as error:
        needed = ", ".join(n for n, p in signature.parameters.items() if p.default is p.empty) or "..."
        why = str(error).partition("\n")[0] or type(error).__name__
        raise TypeError(
            f"dryrun({name}) needs an example: pass what the model is called with, dryrun(model, {needed}); none can "
            f"be drawn from annotations ({why})"
        ) from (None if isinstance(error, AnnotationError) else error)
    return bound


def _several(name: str, value: Any, legal: Iterable[Any]) -> tuple[Any, ...]:
    known = ", ".join(sorted("None" if item is None else name_of(item) for item in legal))
    given = several(name, value, torch.dtype | str | None, "a dtype such as torch.bfloat16, or several")
    asked = tuple(dict.fromkeys(BY_NAME.get(item, item) if isinstance(item, str) else item for item in given))
    for item in asked:
        if item not in legal:
            raise ValueError(f"{name}: {item!r} is none of {known}")
    if not asked:
        raise ValueError(f"{name} is empty: name at least one of {known}")
    return asked


def _place(device: torch.device | str | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    place = torch.device(device)
    if place.type == "meta":
        raise ValueError("device: there are no kernels on meta; leave it out, or write device='cpu'")
    try:
        return torch.empty(0, device=place).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={device!r} is not here ({str(error).partition(chr(10))[0]})") from None
