"""`dryrun`: in which dtypes does a model run, and what comes out."""

import inspect
import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..._core.base.dtypes import FLOATING, FloatName, HalfName
from ..._core.base.errors import AnnotationError
from ..._core.base.frames import let_go
from ..._core.base.modules import root_of
from ..._core.base.options import device_here, explained
from ..._core.base.options import dtypes as read
from ..._core.base.progress import progress
from ..._core.contract.anchor import anchor_of
from ..._engine.watch.apart import apart
from ..._engine.watch.mode import unheard
from ..._engine.watch.unrecorded import unrecorded
from ..calls import Inputs, aside, inputs_of
from .cells import DryrunCell, Runner
from .table import DryrunTable
from .twin import Original

HELD = "dtypeguard.dryrun: "  # a note of an exception begins so, where the model does not run as it is
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
REGIONS = (None, torch.float16, torch.bfloat16)


@explained
@unrecorded
def dryrun(
    model: nn.Module,
    /,
    batch: Any = None,
    *,
    dtype: torch.dtype | FloatName | Iterable[torch.dtype | FloatName] | None = None,
    region: torch.dtype | HalfName | Iterable[torch.dtype | HalfName | None] | None = (None, "float16", "bfloat16"),
    device: torch.device | str | None = None,
) -> DryrunTable:
    """In which dtypes a model runs, and what comes out, without its memory and without computing it.

    Each combination of the parameters' dtype, the inputs' dtype and an autocast region is a cell. In each cell the
    model's own code is run on a copy that holds no weights. What is small (ids, masks, positions, a small model) is
    computed, since it may decide which way the code goes. Of a large tensor only dtype and sizes are known; whether an
    operation takes such operands is asked of its real kernel, with tensors of size 1. The model may be on meta.

    Args:
        model: the model; neither it nor its weights change, and nothing of it is kept.
        batch: a tensor, a tuple of positional or a dict of keyword arguments, `(value,)` for one argument that is a
            dict or a tuple itself. Tensors of any floating dtype and of any shape that the model takes; they may be on
            meta. Default: it is drawn from the annotations of the model's forward.
        dtype: the dtype of parameters and floating inputs, or its name, or several; default: float32, float64,
            float16 and bfloat16.
        region: the dtype of an autocast region, None for no region, or several of them; default: all three.
        device: whose kernels are asked; default: the GPU if there is one, else the CPU.

    Returns:
        The table. `print(table)` shows it, `table["bfloat16", "float32", None]` is one cell.

    Raises:
        TypeError, ValueError: for bad arguments; and if there is no batch, for a model without annotations, or one
            that does not take what is drawn from them.
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
    try:
        return tabled(model, batch, dtype, region, device)
    except Undrawn as error:
        raise TypeError(str(error)) from error.__cause__


@unrecorded
def tabled(model: nn.Module, batch: Any, dtype: Any = None, region: Any = REGIONS, device: Any = None) -> DryrunTable:
    """What `dryrun` does; raises Undrawn where there is no batch."""
    original, root = Original(model), root_of(model)
    asked = read("dtype", DTYPES if dtype is None else dtype, FLOATING)
    regions = read("region", region, REGIONS)
    place = _as_device(device)
    with unheard(), apart(), aside():
        inputs = _inputs(root, batch)
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
                if batch is None and inputs.tensors():
                    raise Undrawn(root, f"the model does not take what was drawn: {error}") from error
                held = f"{type(root).__name__} does not run on the batch as it is"
                error.add_note(f"{HELD}{held}: {cell.title}")
                raise error
            let_go(error)
    return DryrunTable(type(root).__name__, place, cells)


@unrecorded
def computes_in(model: nn.Module, batch: Any, tool: str) -> dict[str, tuple[torch.dtype, ...]]:
    """By the path of each module, the floating dtypes in which it computes, with parameters and batch as they are.

    Raises exceptions of the model, and RuntimeError where a value decides that is not computed.
    """
    original, root = Original(model), root_of(model)
    place = next((tensor.device for tensor in root.parameters() if tensor.device.type != "meta"), torch.device("cpu"))
    region = torch.get_autocast_dtype(place.type) if torch.is_autocast_enabled(place.type) else None
    with unheard(), apart(), aside():
        cell = DryrunCell(None, None, region)
        error = Runner(original, _inputs(root, batch, tool), place).fill(cell)
        if error is not None:
            raise error
        if cell.status != "runs":
            raise RuntimeError(cell.error)
    return dict(cell.modules)


class Undrawn(TypeError):
    """There is no batch, and none can be drawn from annotations."""

    def __init__(self, root: nn.Module, why: str) -> None:
        parameters = inspect.signature(root.forward).parameters
        names = [name for name, one in parameters.items() if one.default is one.empty] or ["..."]
        self.needed, self.why = names[0] if len(names) == 1 else f"({', '.join(names)})", why.partition("\n")[0]
        super().__init__(
            f"dryrun({type(root).__name__}) needs a batch: pass what the model is called with, "
            f"dryrun(model, {self.needed}); none can be drawn from annotations ({self.why})"
        )


def _inputs(root: nn.Module, batch: Any, tool: str = "dryrun") -> Inputs:
    """The batch; where there is none, one that is drawn from annotations."""
    signature = inspect.signature(root.forward)
    if batch is None and signature.parameters:
        return _drawn(root, signature)
    return inputs_of(tool, root, () if batch is None else batch)


def _drawn(root: nn.Module, signature: inspect.Signature) -> Inputs:
    """The simplest arguments that match the annotations, with tensors that are not empty."""
    try:
        from hypothesis import HealthCheck, find, settings

        from ...testing import inputs_for

        checks: Any = list(HealthCheck)
        quiet = settings(database=None, deadline=None, derandomize=True, suppress_health_check=checks)
        bound = find(
            inputs_for(root).map(lambda found: Inputs(signature, found.args, found.kwargs)),
            lambda found: bool(found.tensors()) and all(leaf.tensor.numel() for leaf in found.tensors()),
            settings=quiet,
        )
    except Exception as error:
        raise Undrawn(root, str(error) or type(error).__name__) from (
            None if isinstance(error, AnnotationError) else error
        )
    return bound


def _as_device(device: torch.device | str | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    place = device_here(device)
    if place.type == "meta":
        raise ValueError(f"device={device!r}: there are no kernels on meta; leave it out, or write device='cpu'")
    return place
