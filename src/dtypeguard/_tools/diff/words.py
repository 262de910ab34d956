"""Distances and counts as a reader wants them."""

import math


def number(value: float | None) -> str:
    """A distance: `4.7e-03`, `0`."""
    if value is None:
        return ""
    return "not finite" if not math.isfinite(value) else f"{value:.1e}" if value else "0"


def short(value: float) -> str:
    """A number of roundings: `2.0`, `310`, `4e+05`."""
    if not math.isfinite(value):
        return "inf"
    return f"{value:.1f}" if value < 99.5 else f"{value:.0f}" if value < 1e5 else f"{value:.0e}"


def count(value: float) -> str:
    return f"{short(value)} rounding{'s' * (short(value) != '1.0')}"
