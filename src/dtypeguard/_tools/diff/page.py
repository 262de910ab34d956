"""Where two programs part, in a notebook's cell and on a page."""

import math
from typing import Any

from ..._show.fragment import badge, facts, folded, joined, lines, listed, table
from ..._show.text import number as counted
from .backward import apart_of
from .words import number, short

_COLOURS = {"same": "good", "rounding": "good", "another function": "error"}
_DECADES, _WIDTH = 9, 18  # of a bar: from 1e-9 to 1


def parts_of(found: Any) -> tuple[Any, ...]:
    """What shows a result: the verdict, then both programs side by side from their inputs to their outputs."""
    first, *rest = found.told()
    own = [row for row in found.rows if row.verdict != "same"]
    head = ("a", "b", "before", "in float64", "roundings a, b", "adds", "outputs apart", "growth", "line", "matched by")
    grads = [
        (row.name, _badge(row.verdict), number(row.apart), number(row.error_a), number(row.error_b))
        for row in found.gradients
    ]
    tokens = [
        (row.sequence, row.position, row.token, f"{row.logprob_a:.4f}", f"{row.logprob_b:.4f}", f"{row.logprob:.4f}")
        for row in sorted(found.tokens, key=lambda row: -abs(row.logprob_a - row.logprob_b))[:20]
    ]
    alone = [
        folded(f"{counted(len(names), 'module')} of {side} alone", listed(names))
        for side, names in zip("ab", found.unmatched, strict=True) if names
    ]  # fmt: skip
    return (
        joined(_badge(found.verdict), f"{found.titles[0]} and {found.titles[1]}"),
        lines(first, *(text.strip() for text in rest)),
        facts(*found._extra(), *found.notes),
        table("modules that differ, what adds most first", head, [_cells(row, found) for row in own], "module"),
        folded("all modules, from inputs to outputs",
               table("", head, [_cells(row, found) for row in found.order], "module")),
        table("gradients", ("parameter", "", "in float64", "error of a", "error of b"), grads, "parameter"),
        table("log probabilities that are most apart",
              ("sequence", "position", "token", "a", "b", "float64"), tokens, "token"),
        *alone,
    )  # fmt: skip


def _cells(row: Any, found: Any) -> tuple[Any, ...]:
    """One module: both names, and what it adds."""
    return (
        ", ".join(row.a) or "(the model)", joined(row.title or "(the model)", _mark(row, found)), row.at or None,
        apart_of(row.at, row.apart), f"{short(row.roundings[0])}, {short(row.roundings[1])}", number(row.adds),
        number(row.outputs), bar(row.outputs), row.site, row.how,
    )  # fmt: skip


def _mark(row: Any, found: Any) -> Any:
    """What a module is, where it is not the same; of the first that parts it is said."""
    if row is found.where:
        return _badge(found.verdict, f"first: {row.verdict}")
    return None if row.verdict in ("same", "rounding", "not judged") else _badge(row.verdict)


def _badge(verdict: str, text: str = "") -> Any:
    return badge(text or verdict, _COLOURS.get(verdict, "warning"))


def bar(value: float | None) -> str:
    """A distance as a bar, by its decades."""
    if not value or value != value:
        return ""
    share = 1.0 if math.isinf(value) else min(1.0, max(0.0, 1 + math.log10(value) / _DECADES))
    return "█" * max(1, round(_WIDTH * share))
