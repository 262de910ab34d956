"""A dry run as one HTML page that needs nothing else, in the style of an audit's page."""

from collections import Counter
from pathlib import Path
from typing import Any

from .._base.dtypes import name_of
from .._report.html import STYLE
from .._show.chips import chip, class_styles
from .._show.document import document
from .._show.fragment import badge, facts, folded, fragment, joined, listed, plain, table

_PAGE = Path(__file__).parent / "page"
_KINDS = {"runs": "good", "repaired": "warning", "refused": "error", "unknown": "none"}


def render(table: Any, statuses: dict[str, str]) -> str:
    """The page of a table."""
    counts = Counter(cell.status for cell in table)
    view = {
        "table": table,
        "data": table.to_dict(),
        "statuses": [(status, text, counts[status]) for status, text in statuses.items() if counts[status]],
        "ids": {cell: f"c{number}" for number, cell in enumerate(table)},
        "name": lambda dtype: "as given" if dtype is None else name_of(dtype),
        "chips": lambda dtypes: list(dict.fromkeys(map(name_of, dtypes))),
        "computed": [*table.computes(), *table.born()],
    }
    return document(_PAGE, view, {"chip": chip}, STYLE.read_text("utf-8") + class_styles())


def cell_of(found: Any, statuses: dict[str, str]) -> str:
    """The output of a notebook's cell that shows a table."""
    head = ("parameters", "autocast", *(f"inputs {_named(dtype)}" for dtype in found.columns()))
    rows = [
        (_named(parameters), _named(region, "-"), *map(_status, cells)) for parameters, region, cells in found.rows()
    ]
    there, computed = {cell.status for cell in found}, (*found.computes(), *found.born())
    return fragment(
        found.head(),
        table("", head, rows),
        listed(joined(badge(status, _KINDS[status]), text) for status, text in statuses.items() if status in there),
        *(folded(title, plain("\n".join(texts))) for title, texts in (*found.troubles(), *computed)),
    )


def one_cell(cell: Any) -> str:
    """The output of a notebook's cell that shows one combination of dtypes."""
    return fragment(
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
