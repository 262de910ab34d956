"""Shorter runs, in which an edit that does not remove a finding is known before the program has run to its end."""

import time
from typing import Protocol

from ..._show.report.causes import Cause
from .compared import born_elsewhere, still_found
from .program import Run, State, Texts, Tried

# The faults that make no number wrong by themselves: an edit that is safe leaves what is printed, nearly, and whether
# they are there is seen without following values.
KEPT = frozenset("DG101 DG103 DG110 DG201 DG202 DG203 DG205 DG206 DG209 DG303 DG306 DG211".split())
_SLOW = 2.0  # seconds of a run; shorter ones are not worth a second one
_PART = 8  # of how many parts of a run's operations one is enough, where the finding is there by then


class Runner(Protocol):
    """Runs the program with these texts.

    Args:
        values: whether to follow values; None: as it was asked for.
        operations: after how many to stop; 0: at its end.
    """

    def __call__(self, texts: Texts, values: bool | None = None, operations: int = 0) -> Run: ...


class Screen:
    """Tells edits that change nothing; `first` is the run without edits."""

    def __init__(self, run: Runner, first: Run) -> None:
        self._run, self._first = run, first
        self._seconds = 0.0  # of the first run with an edit
        self._found: dict[bool | None, set[object]] = {}  # what a short run finds, with values or without

    def timed(self, texts: Texts) -> Run:
        """A run to the end."""
        began = time.monotonic()
        run = self._run(texts)
        self._seconds = self._seconds or time.monotonic() - began
        return run

    def stays(self, cause: Cause, state: State, edited: State) -> bool:
        """Whether a cause is still found with an edit, as far as a shorter run shows it."""
        part = self._first.operations // _PART
        if self._seconds < _SLOW or not part or self._first.stopped or self._first.error:
            return False
        values = False if cause.rule in KEPT and self._first.errors is not None else None
        if values not in self._found:
            short = self._run({}, values, part)
            self._found[values] = set(map(State({}, {}).key, short.bad)) if short.stopped else set()
        if self._found[values].isdisjoint(map(state.key, cause.findings)):
            return False
        new = Tried(edited, self._run(edited.texts, values, part))
        return still_found(cause, state, new) and not born_elsewhere(cause, state, new)
