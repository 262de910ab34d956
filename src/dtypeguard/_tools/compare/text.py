"""Numbers, names and places as a reader wants them."""

import math

from ..._core.base.frames import shown

LARGE = 0.01  # an error of a module's output that is worth telling


def percent(value: float) -> str:
    """A share as a reader wants it: `56 %`, `0.42 %`, `1.3e-05`."""
    if not math.isfinite(value):
        return str(value)
    value *= 100
    if value and abs(value) < 0.01:
        return f"{value / 100:.1e}"
    return f"{value:.0f} %" if abs(value) >= 9.95 else f"{value:.2g} %"


def titled(name: str) -> str:
    """The name of a module; the model itself has none."""
    return name or "(the model itself)"


def site_of(file: str, line: int) -> str:
    """`file:line`, from the working directory."""
    return f"{shown(file)}:{line}"
