"""`dryrun`: in which dtypes does a model run, and what comes out."""

import inspect
import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .._base.progress import progress
from .._calls import Inputs, aside
from .._contract.anchor import anchor_of
from .._doors.forward import root_of
from .cell import DryCell, Runner
from .table import DryTable
from .twin import Original

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_REGIONS = (None, torch.float16, torch.bfloat16)


def dryrun(
    model: nn.Module,
    /,
    *example: Any,
    dtypes: Iterable[torch.dtype] | None = None,
    autocast: Iterable[torch.dtype | None] | None = None,
    device: torch.device | str | None = None,
    **kwargs: Any,
) -> DryTable:
    original = Original(model)
    root = root_of(model)
    inputs = Inputs(inspect.signature(root.forward), example, kwargs)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    asked = tuple(dtypes or _DTYPES)
    regions = tuple(autocast or _REGIONS)
    anchor = anchor_of(root)
    rows = (None,) if anchor is None else asked if anchor.dtype is not None else (*asked, None)
    columns = asked if inputs.floats() else (None,)
    cells = [DryCell(*key) for key in ((p, i, r) for p, r, i in itertools.product(rows, regions, columns))]
    runner = Runner(original, inputs, place)
    with aside():
        for cell in progress(f"dryrun({type(root).__name__})", cells):
            runner.fill(cell)
    return cells
