"""What is found in a run of a program with an edit, compared with the run before it."""

from ..._show.report.causes import Cause, causes_of
from .program import Run, State


def removed_beside(cause: Cause, state: State, base: Run, edited: State, run: Run) -> bool:
    """Whether more than a cause is gone with an edit."""
    gone = {state.key(finding) for finding in base.bad} - {edited.key(finding) for finding in run.bad}
    return bool(gone - {state.key(finding) for finding in cause.findings})


def still_found(cause: Cause, state: State, run: Run, edited: State) -> bool:
    """Whether something of a cause is still found."""
    keys = {edited.key(finding) for finding in run.bad}
    return any(state.key(finding) in keys for finding in cause.findings)


def born_elsewhere(cause: Cause, state: State, run: Run, edited: State) -> list[Cause]:
    """What is found at a line as before, but comes from other lines now: `(x - mean64) / std64` with the first cast."""
    before = {
        (state.key(f), spot.file, state.was(spot.file, spot.line)) for f in cause.findings for spot in f.spots[1:]
    }
    keys = {state.key(finding) for finding in cause.findings}
    left = [finding for finding in run.bad if edited.key(finding) in keys]
    births = {(edited.key(f), s.file, edited.was(s.file, s.line)) for f in left for s in f.spots[1:2]}
    return list(causes_of(left)) if births and births.isdisjoint(before) else []
