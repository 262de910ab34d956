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
    for module, paths in description.groups():
        title = description.title(module, paths)
        if len(paths) > 1:
            title = folded(title, plain("\n".join(modules_shown(paths))))
        first, *rest = [*demands(module)] or [("", "")]
        yield title, held_line(module), *first
        yield from (("", "", *one) for one in rest)
