"""A dry run as one HTML page that needs nothing else, in the style of an audit's page."""

from collections import Counter
from pathlib import Path
from typing import Any

from .._base.dtypes import name_of
from .._report.html import page_of, stylesheet

_HERE = Path(__file__).parent


def render(table: Any, statuses: dict[str, str]) -> str:
    """The page of a table. It has no script."""
    counts = Counter(cell.status for cell in table)
    return page_of(
        (_HERE / "page.html.j2").read_text("utf-8"),
        stylesheet() + (_HERE / "page.css").read_text("utf-8"),
        table=table,
        data=table.to_dict(),
        statuses=[(status, text, counts[status]) for status, text in statuses.items() if counts[status]],
        ids={cell: f"c{number}" for number, cell in enumerate(table)},
        name=lambda dtype: "as given" if dtype is None else name_of(dtype),
        chips=lambda dtypes: list(dict.fromkeys(map(name_of, dtypes))),
        computed=[*table.computes(), *table.born()],
    )
