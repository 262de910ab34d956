"""Findings in a notebook's cell, and on a page."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..._core.base.dtypes import name_of
from ..._engine.watch.rule import RULES, Severity
from ..fragment import badge, folded, joined, link, plain, table, where
from ..text import human, number
from .causes import Cause, Change, tone
from .text import Style, cause_lines

if TYPE_CHECKING:
    from markupsafe import Markup

_OPEN = 3  # causes that are shown open
_STYLE = Style(100)


def findings_parts(title: Any, causes: Sequence[Cause], *parts: Any) -> tuple[Any, ...]:
    """What shows findings by cause, the worst first, with parts below them."""
    bad = [cause for cause in causes if cause.severity != Severity.INFO.value]
    mere = causes[len(bad) :]
    rest = folded(number(len(mere), "info"), *(_cause(cause, False) for cause in mere)) if mere else None
    return title, *(_cause(cause, place < _OPEN) for place, cause in enumerate(bad)), rest, *parts


def _cause(cause: Cause, opened: bool) -> "Markup":
    """A cause: its first line, which unfolds the program's code as the printed report has it."""
    rule = RULES[cause.rule]
    spot = cause.spots[0].place if cause.spots else cause.first.site
    head = joined(badge(cause.severity, cause.severity), link(cause.rule, rule.docs), cause.title, where(spot))
    return folded(head, plain("\n".join(list(cause_lines(cause, _STYLE))[1:])), opened=opened)


def verdict_parts(verdict: str, changes: Sequence[Change]) -> tuple["Markup", "Markup | None"]:
    """The verdict, and the lines to change where there are several."""
    rows = [(change.place, change.fix, change.removes) for change in changes] if len(changes) > 1 else []
    head = badge(verdict, tone(verdict))
    return head, table("", ("line", "what to write", "removes"), ((where(p), f, r) for p, f, r in rows), "line")


def casts_table(casts: Iterable[Any]) -> "Markup | None":
    """The conversions, folded."""
    rows = [(human(c.bytes), c.count, c.kind, _arrow(c), where(c.site), c.module_path) for c in casts]
    head = ("bytes", "count", "kind", "cast", "where", "module")
    return folded(number(len(rows), "cast"), table("", head, rows, "cast")) if rows else None


def _arrow(cast: Any) -> "Markup":
    if cast.from_dtype is cast.to_dtype:
        return joined(cast.from_dtype, f"{cast.from_device} -> {cast.to_device}")
    names = (f"to {name_of(cast.to_dtype)}",) if cast.from_dtype is None else (cast.from_dtype, "->", cast.to_dtype)
    return joined(*names)
