"""A dry run in a notebook's cell, and on a page."""

from collections.abc import Callable, Mapping
from typing import Any

from ..._core.base.dtypes import dtype_title
from ..._show.fragment import badge, facts, folded, joined, listed, plain, table
from ..._show.svg import Cell, Matrix

_KINDS = {"runs": "good", "repaired": "warning", "refused": "error", "unknown": "none"}
_COLOURS = {"runs": "good", "repaired": "warn", "refused": "bad", "unknown": "unknown"}


def matrix_of(found: Any, outputs: Callable[[Any], str]) -> Matrix:
    """A table as a picture."""
    single, rows = len(found.columns()) == 1, dict[tuple[str, str], list[Cell]]()
    for cell in found:  # with inputs of one kind, the regions stand across
        key = (
            dtype_title(cell.parameters),
            "" if single or cell.region is None else f"autocast {dtype_title(cell.region)}",
        )
        drawn = Cell(_COLOURS[cell.status], cell.status, outputs(cell), f"{cell.title}: {cell.status}")
        rows.setdefault(key, []).append(drawn)
    there = {cell.status for cell in found}
    keys = [(colour, status) for status, colour in _COLOURS.items() if status in there]
    regions = [dtype_title(region, "no region") for region in dict.fromkeys(cell.region for cell in found)]
    columns, across = (regions, "autocast") if single else (list(map(dtype_title, found.columns())), "inputs")
    lines = [(*key, cells) for key, cells in rows.items()]
    return Matrix(f"{found.module}: in which dtypes does it run?", columns, lines, across, "parameters", keys)


def parts_of(found: Any, statuses: Mapping[Any, str]) -> tuple[Any, ...]:
    """What shows a table."""
    head = ("parameters", "region", *(f"inputs {dtype_title(dtype)}" for dtype in found.columns()))
    rows = [
        (dtype_title(parameters), dtype_title(region, "-"), *map(_status, cells))
        for parameters, region, cells in found.rows()
    ]
    there, computed = {cell.status for cell in found}, (*found.computes(), *found.born())
    return (
        found.head(),
        listed(found.answers()),
        folded("as a table", table("", head, rows)),
        listed(joined(badge(status, _KINDS[status]), text) for status, text in statuses.items() if status in there),
        *(folded(title, plain("\n".join(texts))) for title, texts in (*found.troubles(), *computed)),
    )


def parts_of_cell(cell: Any) -> tuple[Any, ...]:
    """What shows one combination of dtypes."""
    return (
        cell.title,
        facts(_status(cell)),
        None if cell.error is None else plain(cell.error),
        listed(f"a guard casts {text}" for text in cell.repairs),
        table("computes in", ("module", "dtypes"), ((path, joined(*dtypes)) for path, dtypes in cell.modules.items())),
        listed(f"born inside: {text}" for text in cell.births),
    )


def _status(cell: Any) -> Any:
    return joined(badge(cell.status, _KINDS[cell.status]), *dict.fromkeys(cell.outputs))
