"""A description as an HTML page, and as the output of a notebook's cell."""

from pathlib import Path
from typing import Any

from .._base.dtypes import name_of
from .._show.chips import chip, class_styles
from .._show.document import document
from .._show.fragment import badge, facts, folded, fragment, listed, plain, table
from .words import demands, held, shown

_PAGE = Path(__file__).parent / "page"
_OPEN = 8  # groups of modules that are shown open


def page(description: Any) -> str:
    """A page."""
    view = {"it": description, "groups": list(_groups(description)), "open": _OPEN, "dtypes": _dtypes(description)}
    return document(_PAGE, view, {"chip": chip}, class_styles())


def cell(description: Any) -> str:
    """The output of a notebook's cell."""
    first, *rest = [_group(group) for group in _groups(description)]
    head = badge("guarded", "good") if description.guarded else badge("not guarded", "none")
    return fragment(
        description.model,
        facts(head, *(f"{name} {text}" for name, text in description.facts())),
        first,
        listed_groups(rest),
        folded("what holds for all of it", listed(description.ends())),
    )


def listed_groups(groups: list[Any]) -> Any:
    """The groups of modules inside; folded where they are many."""
    if not groups:
        return None
    whole = groups[0]
    for group in groups[1:]:
        whole = whole + group
    return whole if len(groups) < _OPEN else folded(f"{len(groups)} kinds of modules inside", whole)


def _group(group: dict[str, Any]) -> Any:
    rows = table(f"{group['title']}: {group['held']}", ("argument", "must be"), group["demands"], "argument")
    if rows is None:
        rows = facts(f"{group['title']}: {group['held']}")
    return rows if len(group["paths"]) == 0 else rows + folded(group["many"], plain("\n".join(group["paths"])))


def _groups(description: Any) -> Any:
    for module, paths in description.groups():
        several = len(paths) > 1
        yield {
            "title": description.title(module, paths),
            "held": held(module),
            "demands": list(demands(module)),
            "paths": shown(paths) if several else [],
            "many": f"{len(paths)} modules",
        }


def _dtypes(description: Any) -> list[tuple[str, int]]:
    return [(name_of(dtype), len(names)) for dtype, names in description.parameters.items()]
