"""A description in a notebook's cell, and on a page."""

from collections.abc import Iterator
from typing import Any

from ..._show.fragment import badge, facts, folded, joined, listed, plain, table
from ..._show.text import modules_shown
from .words import demands, held_line


def parts_of(description: Any) -> tuple[Any, ...]:
    """What shows it."""
    head = badge("guarded", "good") if description.guarded else badge("not guarded", "none")
    return (
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
            "held": held_line(module),
            "demands": list(demands(module)),
            "paths": modules_shown(paths) if several else [],
        }
