"""A dry run in a notebook's cell, and on a page."""

from collections.abc import Mapping
from typing import Any

from ..._core.base.dtypes import name_of
from ..._show.fragment import badge, facts, folded, joined, listed, plain, table

_KINDS = {"runs": "good", "repaired": "warning", "refused": "error", "unknown": "none"}


def parts_of(found: Any, statuses: Mapping[Any, str]) -> tuple[Any, ...]:
    """What shows a table."""
    head = ("parameters", "region", *(f"inputs {_named(dtype)}" for dtype in found.columns()))
    rows = [
        (_named(parameters), _named(region, "-"), *map(_status, cells)) for parameters, region, cells in found.rows()
    ]
    there, computed = {cell.status for cell in found}, (*found.computes(), *found.born())
    return (
        found.head(),
        table("", head, rows),
        listed(joined(badge(status, _KINDS[status]), text) for status, text in statuses.items() if status in there),
        *(folded(title, plain("\n".join(texts))) for title, texts in (*found.troubles(), *computed)),
    )


def parts_of_cell(cell: Any) -> tuple[Any, ...]:
    """What shows one combination of dtypes."""
    return (
        str(cell),
        facts(_status(cell)),
        None if cell.error is None else plain(cell.error),
        listed(f"a guard casts {text}" for text in cell.repairs),
        table("computes in", ("module", "dtypes"), ((path, joined(*dtypes)) for path, dtypes in cell.modules.items())),
        listed(f"born inside: {text}" for text in cell.births),
    )


def _status(cell: Any) -> Any:
    return joined(badge(cell.status, _KINDS[cell.status]), *dict.fromkeys(cell.outputs))


def _named(dtype: Any, nothing: str = "as given") -> str:
    return nothing if dtype is None else name_of(dtype)
