"""How wrong the values of a program are, with an edit and without it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .program import Line, Run, State

_SPOILT = 0.02  # an error of values from which on an edit for it has to make it smaller
_MOVED = 0.9  # of an error, which an edit has made smaller


@dataclass(frozen=True)
class Errors:
    """How wrong values are, at the lines that were there before any edit, at most.

    Attributes:
        lines: of what is computed at a line.
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
    """What an edit does to errors.

    Attributes:
        before: the errors without it.
        after: those with it.
        places: the lines of what it is for.
        ended: whether the program ended with an exception without it.
    """

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
