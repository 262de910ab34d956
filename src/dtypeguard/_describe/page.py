"""A description as an HTML page, and as the output of a notebook's cell."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._base.dtypes import name_of
from .._show.chips import chip, class_styles
from .._show.document import document
from .._show.fragment import badge, facts, folded, fragment, joined, listed, plain, table
from .words import demands, held, shown

_PAGE = Path(__file__).parent / "page"
_OPEN = 8  # groups of modules that are shown open


def page(description: Any) -> str:
    """A page."""
    view = {"it": description, "groups": list(_groups(description)), "open": _OPEN, "dtypes": _dtypes(description)}
    return document(_PAGE, view, {"chip": chip}, class_styles())


def cell(description: Any) -> str:
    """The output of a notebook's cell."""
    head = badge("guarded", "good") if description.guarded else badge("not guarded", "none")
    return fragment(
        joined(description.model, head),
        *(facts(joined(name, text)) for name, text in description.facts()),
        table("", ("module", "inputs are", "argument", "must be"), _rows(description), "row"),
        folded("what holds for all of it", listed(description.ends())),
    )


def _rows(description: Any) -> Iterator[tuple[Any, ...]]:
    """One row for each argument, the first of a module with its name."""
    for group in _groups(description):
        title = group["title"]
        if group["paths"]:
            title = folded(title, plain("\n".join(group["paths"])))
        asked = group["demands"] or [("", "")]
        yield title, group["held"], *asked[0]
        yield from (("", "", *one) for one in asked[1:])


def _groups(description: Any) -> Iterator[dict[str, Any]]:
    for module, paths in description.groups():
        several = len(paths) > 1
        yield {
            "title": description.title(module, paths),
            "held": held(module),
            "demands": list(demands(module)),
            "paths": shown(paths, None) if several else [],
        }


def _dtypes(description: Any) -> list[tuple[str, int]]:
    return [(name_of(dtype), len(names)) for dtype, names in description.parameters.items()]
