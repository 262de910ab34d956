"""Why there is no edit: what came of the candidate that came nearest."""

from collections.abc import Iterable
from typing import NamedTuple

from ..._core.base.frames import shown
from .compared import skeleton
from .program import Run

_MOST = 60  # characters of a line


class Refusal(NamedTuple):
    """Why a candidate is none, as a clause, and how near it came to an edit."""

    near: int
    text: str


STAYS = Refusal(0, "it is still found with what was tried")
TRUNCATES = Refusal(1, "what removes it makes integers of floats")
MERGES = Refusal(1, "what removes it casts to float32, which has too few digits for the values")
HIDES = Refusal(1, "what removes it would only hide it in float64")
COPIES = Refusal(3, "what removes it changes the numbers of a program that may be right")
WRONG = Refusal(5, "what removes it leaves the values as wrong, or makes a result worse")


def ends(run: Run) -> Refusal:
    how = _short(run.error.partition("\n")[0]) if run.error else f"exit status {run.status}"
    return Refusal(2, f"the program ends with {how} with what was tried")


def brings(rule: str, file: str | None, line: int) -> Refusal:
    return Refusal(3, f"what removes it brings {rule} at {shown(file or '')}:{line}")


def prints(before: Iterable[str], after: Iterable[str]) -> Refusal:
    """It prints something else, by the lines that are compared."""
    old, new = list(before), list(after)
    other = next(((a, b) for a, b in zip(old, new, strict=False) if skeleton(a) != skeleton(b)), None)
    how = f"`{_short(other[1])}`, not `{_short(other[0])}`" if other else f"{len(new)} lines, not {len(old)}"
    return Refusal(4, f"with what removes it the program prints {how}: look whether that is right")


def _short(text: str) -> str:
    return text if len(text) <= _MOST else f"{text[: _MOST - 3]}..."
