"""A manifest, and what differs from one, in a notebook's cell and on a page."""

from collections.abc import Mapping
from typing import Any

from ..._core.state.contents import Contents
from ..._core.state.differences import Difference, Differences
from ..._core.state.patterns import natural
from ..._core.state.reading import Held
from ..._show.chips import chip
from ..._show.fragment import badge, facts, folded, joined, listed, table
from ..._show.text import number

_WHAT = {"tensors": "", "gradients": "gradients", "optimizer": "state of the optimizer", "computes": "computes in"}
_OPEN = 40  # a tree of so many names is shown open


def parts_of(contents: Contents) -> tuple[Any, ...]:
    """What shows a manifest."""
    names = {name: line[1] for name in contents.names or () if (line := contents.line("tensors", name))}
    return (
        contents.title,
        facts(number(len(names), "name"), number(len(contents.tied), "tied tensor")),
        *(
            table(_WHAT[section], ("names", "holds"), ((pattern, _held_label(held)) for pattern, held in rows))
            for section, rows in contents.lines.items()
        ),
        listed(f"`{name}` is `{first}`" for name, first in contents.tied.items()),
        _tree({name: _held_label(held) for name, held in names.items()}, frozenset()),
    )


def parts_of_diff(found: Differences) -> tuple[Any, ...]:
    """What shows differences."""
    rows = (
        (pattern, _side(row, row.expected), _side(row, row.actual or "missing"), len(row.names), row.origin)
        for row, (pattern, _) in zip(found.rows, found.lines(), strict=True)
    )
    wrong = frozenset(name for name, sides in found.kinds.items() if len(sides) > 1)
    held = {
        name: joined(_held_text(sides[0]), badge(f"is {sides[1]}", "error")) if name in wrong else _held_text(sides[0])
        for name, sides in found.kinds.items()
    }
    new = ((name, _held_text(text)) for name, text in found.new)
    return (
        joined(badge("differs" if found else "same", "error" if found else "good"), found.head()),
        table("", ("names", "manifest", "here", "count", "changed"), rows),
        table("new names, which are not compared", ("names", "holds"), new),
        _tree(held, wrong),
    )


def _tree(held: Mapping[str, Any], wrong: frozenset[str]) -> Any:
    """Modules in modules, with what their tensors hold; open where something differs, or if they are few."""
    inside = _below("", sorted(held, key=natural), held, wrong)
    return folded("all names", inside, opened=bool(wrong) or len(held) <= _OPEN) if held else None


def _below(path: str, names: list[str], held: Mapping[str, Any], wrong: frozenset[str]) -> Any:
    """What is below a path, as a list in lists."""
    items = []
    for part in dict.fromkeys(name[len(path) :].partition(".")[0] for name in names):
        full = path + part
        below = [name for name in names if name.startswith(f"{full}.")]
        mark = badge("differs", "error") if not wrong.isdisjoint(below) else None
        items.append(joined(part, mark, held.get(full), _below(f"{full}.", below, held, wrong)))
    return listed(items)


def _side(row: Difference, text: str) -> Any:
    return text if row.section == "tied" or text == "missing" else _held_text(text)


def _held_text(text: str) -> Any:
    return _held_label(Held.read(text))


def _held_label(held: Held) -> Any:
    """What a tensor holds, its dtype as a label."""
    dtype, _, rest = held.dtype.partition(" ")
    return joined(chip(dtype), " ".join(filter(None, (rest, str(held._replace(dtype="")).strip(" ,")))) or None)
