"""Shares as bars, and as words: their parts apart, and what takes away from the error on the other side of zero."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..._show.text import percent

PARTS = ("weights", "arithmetic", "decisions")
LEAST = 0.0005  # a part of a share below is not worth a word
_THINNEST = 0.05  # of a bar, in percent of the longest


def scale_of(rows: Iterable[dict[str, Any]]) -> tuple[float, float]:
    """The end of the longest bar on the left of zero, and on the right."""
    low = high = 0.0
    for row in rows:
        low = min(low, sum(min(row[name], 0.0) for name in PARTS))
        high = max(high, sum(max(row[name], 0.0) for name in PARTS))
    return (low, high) if high > low else (0.0, 1.0)


def bar(row: dict[str, Any], scale: tuple[float, float]) -> dict[str, Any]:
    """The parts of a share, in percent of a scale; where zero is, and the sum if it is not the end of the bar."""
    low, high = scale
    ends, pieces = {True: 0.0, False: 0.0}, []
    for name in PARTS:
        value = row[name]
        start = ends[value > 0]
        ends[value > 0] += value
        width = 100 * abs(value) / (high - low)
        if width >= _THINNEST:
            at = 100 * (min(start, start + value) - low) / (high - low)
            pieces.append({"name": name, "at": short(at), "width": short(width)})
    net = sum(row[name] for name in PARTS)
    mixed = min(ends[True], -ends[False]) > 0.01 * (high - low)
    return {
        "pieces": pieces,
        "zero": short(-100 * low / (high - low)) if low else None,
        "net": short(100 * (net - low) / (high - low)) if mixed else None,
    }


def short(value: float) -> float:
    """A coordinate."""
    return round(value, 3)


def number(value: float) -> str:
    """An error, or a part of a share."""
    if not math.isfinite(value):
        return "not finite"
    return f"\N{MINUS SIGN}{percent(-value)}" if value < 0 else percent(value)


def share(value: float) -> str:
    """A share: nobody needs to know how far one is below 0.01 %."""
    return "\N{ALMOST EQUAL TO}0 %" if 0 < abs(value) < 1e-4 else number(value)


def words_of(data: dict[str, Any]) -> dict[str, str]:
    """What the parts are called: in formats that of operations is the activations'."""
    return {name: data.get("arithmetic", name) if name == "arithmetic" else name for name in PARTS}


def share_text(row: dict[str, Any], words: Mapping[str, str]) -> str:
    """A share with its parts: `9.4 %: weights 3 %, arithmetic 6.4 %`."""
    parts = ", ".join(f"{words[name]} {share(row[name])}" for name in PARTS if abs(row[name]) >= LEAST)
    return share(sum(row[name] for name in PARTS)) + (f": {parts}" if parts else "")
