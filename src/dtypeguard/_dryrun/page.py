"""A dry run as one HTML page that needs nothing else, in the style of an audit's page."""

from collections import Counter
from pathlib import Path
from typing import Any

from .._base.dtypes import name_of
from .._report.html import STYLE
from .._show.chips import chip, class_styles
from .._show.document import document

_PAGE = Path(__file__).parent / "page"


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
