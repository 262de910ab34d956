"""What a run of the program with an edit came to, compared with the run before it."""

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..._core.base.dtypes import HALF
from ..._engine.watch.rule import Finding
from ..._engine.watch.spots import Spot
from ..._show.report.causes import Cause, causes_of
from .left import Sample
from .program import Line, Run, State, Tried

_SUMMARY = re.compile(r"\[ *\d+%\]|\b\d+ passed\b")  # lines of pytest
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?:nan|inf)\b)|\b(?:True|False)\b|0x[0-9a-f]+"
)
_KIND = r"(?:torch\.)?(?:b?float(?:16|32|64)|int(?:8|16|32|64)|uint8|bool|complex(?:64|128))\b"
_DTYPE = re.compile(rf"(, dtype={_KIND})|\b{_KIND}")
_SEVERAL = re.compile(r"(?P<quote>'?)0(?P=quote)(?:,(?P=quote)0(?P=quote))+")
_MAKES = re.compile(r"\b(tensor|as_tensor|from_numpy|arange|linspace)\(")
_BEFORE_IT_ENDS = 3  # lines that a program may print of the exception that ends it
_WHOLE = 2048  # from which on float16 lacks whole numbers: there each one counts
_SPOILT = 0.02  # an error of values from which on an edit for it has to make it smaller
_MOVED = 0.9  # of an error, which an edit has made smaller


# ---------------------------------------------------------------- what is found


def removed_beside(cause: Cause, old: Tried, new: Tried) -> bool:
    """Whether more than a cause is gone with an edit."""
    return bool(old.keys - new.keys - set(map(old.key, cause.findings)))


def still_found(cause: Cause, state: State, new: Tried) -> bool:
    """Whether something of a cause is still found."""
    return not new.keys.isdisjoint(map(state.key, cause.findings))


def born_elsewhere(cause: Cause, state: State, new: Tried) -> list[Cause]:
    """What is found at a line as before, but comes from other lines now: `(x - mean64) / std64` with the first cast."""
    before = {
        (state.key(f), spot.file, state.was(spot.file, spot.line)) for f in cause.findings for spot in f.spots[1:]
    }
    keys = set(map(state.key, cause.findings))
    left = [finding for finding in new.run.bad if new.key(finding) in keys]
    births = {(new.key(f), s.file, new.state.was(s.file, s.line)) for f in left for s in f.spots[1:2]}
    return list(causes_of(left)) if births and births.isdisjoint(before) else []


# ---------------------------------------------------------------- what is printed, and what leaves the program


def skeletons_agree(base: Run, run: Run, before: Sequence[str], after: Sequence[str], trained: bool) -> bool:
    """Whether a run prints what the one before did, but for numbers and names of dtypes; more, if that ended early.

    With `trained` models become others, and so does what they write, in less than half of the lines.
    A runner of tests, whose status tells that some fail, prints less where more of them pass.
    """
    if base.status and not base.error and run.status in (0, base.status):
        return True
    if count_nonfinite(after) > count_nonfinite(before):
        return False
    old, new = (list(map(skeleton, lines)) for lines in (before, after))
    if run.error or run.stopped or base.stopped:
        return old[: len(new)] == new or new[: len(old)] == old
    if base.error:
        return any(
            new[: len(old) - more] == old[: len(old) - more] for more in range(min(_BEFORE_IT_ENDS, len(old)) + 1)
        )
    alike = sum(map(operator.eq, old, new))
    return new == old or (trained and len(new) == len(old) and alike > len(old) / 2)


def skeleton(line: str) -> str:
    """A line without its numbers, how many a list has, and dtypes, which a tensor prints unless it is the default."""
    plain = _DTYPE.sub(lambda found: "" if found[1] else "D", line)
    zeros = re.sub(r"\s+|(?<=0)\.(?=[,\])])", "", _NUMBER.sub("0", plain))
    return _SEVERAL.sub("0", zeros)


def near(old: Sequence[str], new: Sequence[str], nearly: float) -> bool:
    """Whether the numbers in lines are nearly the same."""
    for one, other in zip(old, new, strict=False):
        for a, b in zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=False):
            try:
                x, y = float(a.replace("_", "")), float(b.replace("_", ""))
            except ValueError:  # True, 0x7f
                continue
            least = 0.0 if x.is_integer() and abs(x) > _WHOLE and "." not in a else nearly  # an id, a time
            if abs(x - y) > least * max(abs(x), abs(y), 1e-6) and math.isfinite(x):
                return False
    return True


def shows(run: Run) -> bool:
    """Whether what leaves a run tells of numbers: tests that pass, and save or read no tensor, do not."""
    return bool(run.left) or not any(_SUMMARY.search(line) for line in run.lines)


def count_nonfinite(lines: Iterable[str]) -> int:
    """How many infinite values and NaN were printed."""
    return sum(len(re.findall(r"\b(?:nan|inf)\b", line)) for line in lines)


def all_near(old: Run, new: Run, nearly: float) -> bool:
    """Whether what left two runs is nearly the same; with 0 it is the same, and of the same dtype."""
    return all(_is_near(a, b, nearly) for a, b in zip(old.left, new.left, strict=False))


def _is_near(old: Sample, new: Sample, nearly: float) -> bool:
    if old.shape != new.shape:  # of something else
        return True
    if not nearly:
        return old.dtype == new.dtype and all(a == b or a != a for a, b in zip(old.values, new.values, strict=True))
    pairs = [(a, b) for a, b in zip(old.values, new.values, strict=True) if math.isfinite(a)]
    apart = math.hypot(*(a - b for a, b in pairs))
    return apart <= nearly * math.hypot(*(a for a, _ in pairs))  # which NaN that is new is not


# ---------------------------------------------------------------- how wrong values are


@dataclass(frozen=True)
class Errors:
    """How wrong values are, at the lines that were there before any edit, at most.

    Attributes:
        results: of what leaves the program there: numbers it reads, results, what it trains.
    """

    lines: Mapping[Line, float]
    results: Mapping[Line, float]


def errors_of(state: State, run: Run) -> Errors:
    """The errors of a run of the program as it is in a state."""
    found: list[dict[Line, float]] = [{}, {}]
    for errors, known in zip((run.errors, run.leaving), found, strict=True):
        for (file, line), error in (errors or {}).items():
            place = file, state.was(file, line)
            known[place] = max(error, known.get(place, 0.0))
    return Errors(*found)


@dataclass(frozen=True)
class ErrorChange:
    """What an edit does to errors at the lines that it is for; `ended`: whether the program ended early without it."""

    before: Errors
    after: Errors
    places: set[Line]
    ended: bool

    @property
    def repairs(self) -> bool:
        """Whether values that had lost much at its lines are nearer to what they would be."""
        before, after = self._at_places
        return not _SPOILT < before < math.inf or after < before / 2

    @property
    def exact(self) -> bool:
        """Whether values that had lost digits at its lines have all of them, as counts do."""
        before, after = self._at_places
        return before > 0 == after

    @property
    def keeps(self) -> bool:
        """Whether values at its lines are as wrong as they were."""
        before, after = self._at_places
        return 0 < before < math.inf and after >= _MOVED * before

    @property
    def spoils(self) -> bool:
        """Whether a result is further from what it would be."""
        old, new = (one.results for one in self._both)
        known = old if self.ended else new  # what an exception kept from being reached, nobody has measured
        return any(new.get(at, 0.0) > max(_SPOILT, 2 * old.get(at, 0.0)) for at in known)

    @property
    def left(self) -> float:
        """The largest error of a result that is smaller, and much still; or 0."""
        old, new = (one.results for one in self._both)
        return max((error for at, error in new.items() if _SPOILT < error < _MOVED * old.get(at, 0.0)), default=0.0)

    @property
    def _at_places(self) -> tuple[float, float]:
        before, after = (max((one.lines.get(at, 0.0) for at in self.places), default=0.0) for one in self._both)
        return before, after

    @property
    def _both(self) -> tuple[Errors, Errors]:
        return self.before, self.after


def widens(finding: Finding) -> bool:
    """Whether it is about a cast from half precision, which loses nothing."""
    return finding.from_dtype in HALF and finding.to_dtype in (torch.float32, torch.float64)


def lost_in_float32(cause: Cause) -> list[Spot]:
    """The line at which float32 itself lost digits: of numbers of Python's or NumPy's, or of addends to a total."""
    spots = [spot for spot in cause.first.spots[1:2] if "float32" in spot.label]
    return [spot for spot in spots if _MAKES.search(spot.source) or "beside a larger number" in spot.label]
