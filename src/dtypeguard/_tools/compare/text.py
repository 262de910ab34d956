"""Numbers, names and places as a reader wants them."""

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from ..._core.base.frames import shown
from ..._show.text import percent

K = TypeVar("K")
V = TypeVar("V")
_BAR = 12  # letters
COLUMNS = 80
LARGE = 0.01  # an error of a module's output that is worth telling


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The second ones of pairs, by the first ones."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def of_whole(value: float) -> str:
    """A part of a whole: only all of it is 100 %, and only nothing is 0 %."""
    if 0.995 <= value < 1:
        return f"{math.floor(1000 * value) / 10} %"
    return "< 0.01 %" if 0 < value < 1e-4 else percent(value)


def bars(errors: Sequence[float]) -> list[str]:
    """Errors as bars of `#`, on one logarithmic scale that begins at the power of ten below the least."""
    there = [math.log10(error) for error in errors if 0 < error < math.inf]
    low, high = math.floor(min(there, default=0.0)), math.ceil(max(there, default=0.0))

    def length(error: float) -> int:
        share = 0.0 if not error else 1.0 if math.isinf(error) else (math.log10(error) - low) / max(high - low, 1)
        return round(_BAR * share)

    return ["#" * length(error) for error in errors]


def runs_of(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def verified(runs: int, low: str) -> str:
    """How an error was measured: where nothing need be kept, it is that of the model that was compared."""
    return f"verified by {runs_of(runs)}" if runs else f"the whole model in {low}"


def site_of(file: str, line: int) -> str:
    """`file:line`, from the working directory."""
    return f"{shown(file)}:{line}"
