"""Which edits help: candidates are tried by running the program with them, the audit judges."""

import contextlib
import functools
import itertools
import math
import operator
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import libcst as cst
import torch

from ..._core.base.dtypes import FLOATING
from ..._core.base.frames import installed
from ..._engine.watch.rule import RULES, Finding, Severity
from ..._show.report.causes import Cause, causes_of, loses
from . import blocks, classes, masks, moves, numbers, reasons, training
from .casts import Source
from .code import MOVES, Place
from .compared import (
    ErrorChange,
    Errors,
    all_near,
    born_elsewhere,
    errors_of,
    lost_in_float32,
    near,
    removed_beside,
    shows,
    skeletons_agree,
    still_found,
    widens,
)
from .finish import MORE, WAYS, Edited, Way, same_results, taken_back
from .order import comes_of, rank
from .program import Key, Run, State, Tried, key_of
from .reasons import Refusal
from .screen import KEPT, Runner, Screen
from .source import Candidate, Change, Unfit

ALL = (blocks, classes, masks, moves, numbers, training)  # importing them enters their moves
_TRIES = 24  # candidates for one cause
_TRIES_MORE = 4  # to make an edit whole
_DEPTH = 3  # edits that one cause may need
_RUNS = 40  # of the program, for one cause
_RUNS_AT_FIRST = 12  # where an exception ends the program: its cause may be another one, and this comes again
_EXACT = frozenset(["DG103", "DG905"])  # each digit stays: it may be right as it is, or whole numbers count
_NEARLY = 0.02
# What a move needs no more, or is taken back by.
_AGAINST = {"narrow_at_birth": "cast_to_wide", "cast_to_narrow": "cast_to_wide", "buffers_stay": "narrow_at_birth"}


@dataclass(frozen=True)
class Proof:
    """An edit that helps.

    Attributes:
        findings: what it removed, as it was found at first.
        left: the error of results that it leaves, where that is much.
    """

    moves: tuple[str, ...]
    findings: tuple[Finding, ...]
    before: State
    after: State
    left: float = 0.0


Solution = tuple[tuple[str, ...], Tried]  # the moves, and the program with them


class Search:
    """Edits for what a run of a program found."""

    def __init__(
        self, run: Runner | None, read: Callable[[str], str], first: Run, mine: Callable[[str], bool],
        skip: frozenset[object] = frozenset(), limit: float = math.inf,
    ) -> None:  # fmt: skip
        self._ends = self._pauses = time.monotonic() + limit  # the search, and that for one cause
        self.untried: set[object] = set()  # keys of causes for which the time was over
        self._run, self._read, self._mine, self._skip = run, read, mine, skip
        self._screen = None if run is None else Screen(run, first)
        self.now = Tried(State({}, {}), first)
        self.proofs: list[Proof] = []
        self.faults: list[Exception] = []
        self.refusals: dict[object, Refusal] = {}  # by key: why what came nearest to an edit is none
        self._given_up: set[object] = set()
        self._standing: set[Key] = set()  # keys of what else is found where a cause's first edit is tried
        self._sources: dict[tuple[str, str], Source] = {}
        self._ran: dict[tuple[tuple[str, str], ...], Run] = {(): first}
        self._errors: dict[tuple[tuple[str, str], ...], Errors] = {}
        self._first = {self.now.key(finding): finding for finding in first.findings}
        self._last_run = 0  # by which number of runs a cause has its edit, or none
        self._second: Run | None = None  # of the program as it is, to know what differs from run to run

    @property
    def last(self) -> Run:
        """The run with all edits so far."""
        return self.now.run

    # ------------------------------------------------------------ sources

    @property
    def _files(self) -> list[str]:
        """The files that findings name, and those that the program has loaded."""
        named = [spot.file for finding in self.last.findings for spot in finding.spots]
        return [file for file in dict.fromkeys([*named, *self.last.files]) if self._mine(file)]

    def _text_of(self, file: str, state: State) -> str:
        return state.texts.get(file) or self._read(file)

    def _source(self, file: str, state: State) -> Source:
        text = self._text_of(file, state)
        key = file, text
        if key not in self._sources:
            run = self._ran.get(key_of(state.texts), self.last)
            lines = (frozenset(line for where, line in one if where == file) for one in (run.widened, run.joined))
            self._sources[key] = Source(file, text, *lines)
        return self._sources[key]

    def candidates(
        self, cause: Cause, state: State, kinds: tuple[str, ...], depth: int
    ) -> Iterator[tuple[str, Candidate]]:
        """What may be written for a cause, the best first; for follow-up causes, `cast_to_wide` is tried first."""
        seen: list[list[Change]] = []
        packages: list[tuple[str, Candidate]] = []
        line = cause.first.file, cause.first.line
        here = [finding for finding in self.last.findings if (finding.file, finding.line) == line]  # an info too
        parameters = tuple(dict.fromkeys(name for one in (*cause.findings, *here) for name in one.parameters))
        names = [name for kind in kinds for name in getattr(RULES[cause.rule], kind)]
        for name in sorted(names, key=lambda name: name != "cast_to_wide") if depth < _DEPTH else names:
            place = Place(cause.first, lambda file: self._source(file, state), self._files, parameters)
            try:
                for changes in MOVES[name](place, place.fault) if place.fault is not None else ():
                    changes = sorted(set(changes))
                    if not changes or changes in seen or len(seen) == _TRIES:
                        continue
                    seen.append(changes)
                    if all(self._mine(change.file) for change in changes):
                        yield name, changes
                    elif all(installed(change.file) is not None for change in changes):
                        packages.append((name, changes))
            except (OSError, cst.ParserSyntaxError, UnicodeError, SyntaxError, Unfit):
                continue  # no source, or none that can be read, or it has another shape
            except Exception as error:  # a move that meets what it was not made for must not end the user's command
                self.faults.append(error)
        yield from packages if "unsafe" in kinds else ()

    def _edits(self, cause: Cause, state: State, kinds: tuple[str, ...], depth: int) -> Iterator[tuple[str, State]]:
        """The candidates, as the program with them; none that is no Python, hides writes to a tensor, or goes back."""
        for name, changes in self.candidates(cause, state, kinds, depth):
            with contextlib.suppress(SyntaxError, ValueError):
                edited = state.edited(changes, self._read)
                back = all(self._text_of(file, self.now.state) == text for file, text in edited.texts.items())
                files = {one.file for one in changes}
                if not back and not any(self._writes_to_copy(file, state, edited) for file in files):
                    yield name, edited

    def _writes_to_copy(self, file: str, state: State, edited: State) -> bool:
        """Whether something is written to a copy that was written to a stored tensor before."""
        held = (self._source(file, one).holders for one in (state, edited))
        return any(len(before) == len(after) and before != after for before, after in zip(*held, strict=True))

    # ------------------------------------------------------------ search

    def mend(self, kinds: tuple[str, ...]) -> None:
        """Find edits of these kinds for all causes, one after the other."""
        self._given_up, self.untried, self.refusals = set(self._skip), set(), {}
        proofs: dict[object, int] = {}  # of a cause without an edit: how many others had one then
        while True:
            causes = causes_of(self.last.bad)
            whole = "unsafe" in kinds
            roots = [c for c in causes if not (whole and self._key(c) in self._given_up)]
            pending = [
                cause for cause in causes
                if self._key(cause) not in self._given_up and not any(comes_of(cause, root) for root in roots)
            ]  # fmt: skip
            now = time.monotonic()
            if now > self._ends:
                self.untried.update(map(self._key, pending))
            if not pending or now > self._ends:
                again = {key for key, known in proofs.items() if known < len(self.proofs) and self._came_near(key)}
                if not again or now > self._ends:
                    return
                self._given_up -= again  # what stood against an edit may be mended by now
                proofs = {}
                continue
            first = min(pending, key=rank)
            self._pauses = now + (self._ends - now) / 2  # a hard one leaves time for the others
            ended = self.last.error
            if self._mend_cause(first, kinds):
                if ended and not self.last.error:  # it runs to its end now, and judges otherwise
                    self._given_up, self.refusals = set(self._skip), {}
            else:
                self._given_up.add(self._key(first))
                proofs.setdefault(self._key(first), len(self.proofs))
                if self._is_over:
                    self.untried.add(self._key(first))

    def _came_near(self, key: object) -> bool:
        """Whether something was tried that removes a cause, and something else stood against it."""
        return self.refusals.get(key, reasons.STAYS).near > reasons.HIDES.near

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._pauses

    def _key(self, cause: Cause) -> tuple[str, str | None, int]:
        return self.now.state.key(cause.first)

    def _mend_cause(self, cause: Cause, kinds: tuple[str, ...]) -> bool:
        solve = self._guess if self._run is None else self._solve
        self._last_run = len(self._ran) + (_RUNS_AT_FIRST if self.last.error else _RUNS)
        own = {self.now.key(finding) for finding in cause.findings}
        self._standing = self.now.keys - own
        tried: list[tuple[float, tuple[str, ...], Tried]] = []
        for names, new in itertools.islice(solve([cause], self.now, kinds, _DEPTH), _TRIES_MORE):
            if self._run is not None:
                if len(names) > 1 and self._moves(cause, self.now, new, kinds):
                    continue  # with each of several edits what is left of the program may be less
                names, new = self._least(cause, names, new) if len(names) > 1 else (names, new)
                ways, new = self._finished(cause, new)
                names = (*names, *ways)
            others = any(map(loses, causes_of(new.run.bad)))  # then what is left may come from these
            measures = self._run is not None and loses(cause) and not others
            left = self._change(cause, self.now, new).left if measures else 0.0
            tried.append((left, names, new))
            if not left:
                break
        if not tried:
            return False
        left, names, new = min(tried, key=operator.itemgetter(0))
        gone = [(key, f) for f in self.last.bad if (key := self.now.key(f)) not in new.keys]
        gone = [(key, f) for key, f in gone if f in cause.findings or self._is_mended(f, new)]
        if not gone:  # a later edit took back what an earlier one did
            return False
        findings = [self._first.get(key) or replace(f, line=key[2]) for key, f in gone]
        self.proofs.append(Proof(names, tuple(findings), self.now.state, new.state, left))
        self.now = new
        return True

    def _least(self, cause: Cause, names: tuple[str, ...], new: Tried) -> Solution:
        """An edit of several moves without the changes that it does not need for this cause; the last one helped."""
        for file, text in new.state.texts.items():
            for changes in taken_back(file, self._text_of(file, self.now.state), text):
                with contextlib.suppress(SyntaxError, ValueError):
                    less = self._with(new.state.edited(changes, self._read))
                    if self._judge(cause, self.now, less) == [] and self._repairs(cause, self.now, less):
                        return self._least(cause, names[-1:], less)
        return names, new

    def _finished(self, cause: Cause, new: Tried) -> Solution:
        """An edit that helps, made whole: see `finish`."""
        ways: list[str] = []
        for way in WAYS:
            if way is same_results and (cause.rule in _EXACT or self._is_exact(cause, new)):
                continue  # which rounds
            for _ in range(_DEPTH):
                better = next(self._better(way, cause, new), None)
                if better is None:
                    break
                new = better
                ways.append(way.__name__)
        return tuple(ways), new

    def _is_mended(self, finding: Finding, new: Tried) -> bool:
        """Whether an edit has to do with it that a finding is gone: its values are less wrong, where that is known."""
        (cause,) = causes_of([finding])
        followed = new.run.errors is not None and cause.rule.startswith("DG9")
        known = followed and not self._touches(cause, new.state, self.now.state)
        return not known or not self._change(cause, self.now, new).keeps

    def _is_exact(self, cause: Cause, new: Tried) -> bool:
        """Whether values that had lost digits have all of them with an edit, as counts do."""
        return new.run.errors is not None and self._change(cause, self.now, new).exact

    def _better(self, way: Way, cause: Cause, new: Tried) -> Iterator[Tried]:
        nearly = 0.0 if cause.rule in _EXACT else _NEARLY
        first = self.now.state.texts
        before = self.now if new.run.error else new  # with which that may go
        for file in [file for file, text in new.state.texts.items() if text != first.get(file)]:
            tried = list(way(self._edited(file, new)))[:_TRIES_MORE]
            for changes in filter(None, tried if not self._is_over else ()):
                with contextlib.suppress(SyntaxError, ValueError):
                    better = self._with(new.state.edited(changes, self._read))
                    if (
                        not self._writes_to_copy(file, new.state, better.state)
                        and set(map(better.key, better.run.findings)) <= set(map(before.key, before.run.findings))
                        and self._judge(cause, self.now, better) == []
                        and (way in MORE or new.run.error or self._numbers_agree(new.run, better.run, nearly))
                        and len(list(way(self._edited(file, better)))) < len(tried)
                    ):
                        yield better

    def _edited(self, file: str, new: Tried) -> Edited:
        before, after = (self._text_of(file, one.state).split("\n") for one in (self.now, new))
        written = frozenset(number for number, line in enumerate(after, 1) if line not in before)
        return Edited(self._source(file, new.state), self._source(file, self.now.state), self.now, new, written)

    def _guess(self, causes: list[Cause], old: Tried, kinds: tuple[str, ...], depth: int) -> Iterator[Solution]:
        """The best candidate, which nobody has tried."""
        for name, edited in self._edits(causes[0], old.state, kinds, depth):
            rest = [finding for finding in old.run.findings if finding not in causes[0].findings]
            yield (name,), Tried(edited, Run(rest, old.run.status, old.run.error))

    def _solve(self, causes: list[Cause], old: Tried, kinds: tuple[str, ...], depth: int) -> Iterator[Solution]:
        """Edits that help, the best first."""
        cause, *rest = causes
        base, refuse = old.run, functools.partial(self._refuse, cause, old, depth)
        for name, edits in itertools.groupby(self._edits(cause, old.state, kinds, depth), key=operator.itemgetter(0)):
            later: list[tuple[Tried, list[Cause]]] = []
            for _, edited in edits:
                if len(self._ran) > self._last_run or self._is_over:
                    return
                known = key_of(edited.texts) in self._ran
                if not known and self._screen and self._screen.stays(cause, old.state, edited):
                    refuse(reasons.STAYS)
                    continue
                tried = self._with(edited)
                new = self._judge(cause, old, tried, counts=name == "whole_numbers")
                exact = kinds == ("safe",) and cause.rule in KEPT
                as_it_is = exact and cause.rule in _EXACT and not base.error
                if new is reasons.STAYS and depth > 1 and (others := born_elsewhere(cause, old.state, tried)):
                    later.append((tried, others))
                    continue
                if isinstance(new, Refusal):
                    refuse(new)
                    continue
                agrees = shows(base) or not as_it_is  # of tests that ask for shapes nobody can tell
                if exact and not (agrees and self._numbers_agree(base, tried.run, 0.0 if as_it_is else _NEARLY)):
                    refuse(reasons.COPIES)
                    if as_it_is and not new and (removed_beside(cause, old, tried) or widens(cause.first)):
                        return  # it is wanted, though not safe
                    continue
                if new:
                    refuse(reasons.brings(*tried.key(new[0].first)))
                if new and as_it_is:
                    continue
                new += [other for other in rest if still_found(other, old.state, tried)]
                if not new:
                    if self._repairs(cause, old, tried):
                        yield (name,), tried
                    else:
                        refuse(reasons.WRONG)
                    continue
                if depth > 1 and len(new) <= 3:
                    later.append((tried, new))
            # An edit removed an error that had ended the program; what is found only now, further on, does not count
            # against it.
            for tried, new in later:
                again = any(tried.key(cause.first) in self.now.keys for cause in new)
                # Numbers that have wrapped are not compared with others, and infinite ones show no rounding.
                hid = base.error or cause.rule in ("DG109", "DG901")
                behind = hid and not tried.run.error and not again
                if behind and not any(self._touches(c, old.state, tried.state) for c in new):
                    yield (name,), tried
            for tried, new in later[:3]:
                if depth == _DEPTH and cause.rule not in _EXACT:  # what came may come of the dtype that is returned
                    back = self._better(same_results, cause, tried)
                    yield from (((name, "same_results"), one) for one in back if self._repairs(cause, old, one))
                solved = self._solve(new, tried, kinds, depth - 1)
                found = next((one for one in solved if _AGAINST.get(name) not in one[0]), None)
                if found is not None and self._repairs(cause, old, found[1]):
                    yield (name, *found[0]), found[1]

    def _refuse(self, cause: Cause, old: Tried, depth: int, why: Refusal) -> None:
        key, nothing = old.key(cause.first), Refusal(-1, "")
        if depth == _DEPTH and why.near > self.refusals.get(key, nothing).near:
            self.refusals[key] = why

    def _repairs(self, cause: Cause, old: Tried, new: Tried) -> bool:
        """Whether values that had lost much at the lines of a cause are nearer to what they would be, and what leaves
        the program is not further from it; True where nothing of that is to be measured.

        What was rounded before is as wrong in a wider dtype, in which a rule may not see it any more.
        """
        narrows = not new.lines(new.run.halved) <= old.lines(old.run.halved)
        if self._run is None or not (loses(cause) or narrows):
            return True
        change = self._change(cause, old, new)
        return (change.repairs or not loses(cause)) and not change.spoils

    def _change(self, cause: Cause, old: Tried, new: Tried) -> ErrorChange:
        places = {(f.file, old.key(f)[2]) for f in cause.findings if f.file is not None}
        return ErrorChange(self._errors_of(old.state), self._errors_of(new.state), places, bool(old.run.error))

    def _errors_of(self, state: State) -> Errors:
        """How wrong values are."""
        key = key_of(state.texts)
        if key not in self._errors:
            assert self._run is not None
            run = self._ran.get(key)
            if run is None or run.errors is None:
                run = self._run(state.texts, values=True)
            self._errors[key] = errors_of(state, run)
        return self._errors[key]

    def _with(self, state: State) -> Tried:
        """What the program comes to with these texts; with the same ones it runs once."""
        key = key_of(state.texts)
        if key not in self._ran:
            assert self._screen is not None
            self._ran[key] = self._screen.timed(state.texts)
        return Tried(state, self._ran[key])

    def _both(self) -> tuple[Run, Run]:
        """The program as it is, run twice."""
        if self._second is None and self._run is not None:
            self._second = self._run({})
        return self._ran[()], self._second or self._ran[()]

    def _without_noise(self, base: Run, run: Run) -> tuple[list[str], list[str]]:
        """What both print, but for lines that differ from run to run."""
        pairs = zip(*(one.lines for one in self._both()), strict=False)
        noise = {number for number, (a, b) in enumerate(pairs) if a != b}
        old, new = ([line for number, line in enumerate(one.lines) if number not in noise] for one in (base, run))
        return old, new

    def _output_agrees(self, cause: Cause, base: Run, run: Run) -> bool:
        """Whether a run prints what the one before did, or the program where that one ended, but for noise."""
        base = self._ran[()] if base.error and not self._ran[()].error else base
        trained = bool(base.steps) and cause.rule not in KEPT
        if skeletons_agree(base, run, base.lines, run.lines, trained):
            return True
        return skeletons_agree(base, run, *self._without_noise(base, run), trained)

    def _numbers_agree(self, base: Run, run: Run, nearly: float) -> bool:
        """Whether nearly the same numbers and tensors leave it; of a runner of tests the status tells."""
        if base.status and not base.error:
            return True
        if not near(base.lines, run.lines, nearly) and not near(*self._without_noise(base, run), nearly):
            return False
        return all_near(base, run, nearly) or not all_near(*self._both(), 0.0)

    def _moves(self, cause: Cause, old: Tried, new: Tried, kinds: tuple[str, ...]) -> bool:
        """Whether results are others, with an edit that is safe or casts float64, whose values were right."""
        single = any(self._wrote(*place, old.state, new.state) for place in new.run.singled)
        safe = kinds == ("safe",)
        if cause.rule not in KEPT or not (single or safe) or self._numbers_agree(old.run, new.run, _NEARLY):
            return False
        if safe or not old.run.steps:
            return True
        return self._change(cause, old, new).spoils  # else it may be the course of a training

    def _touches(self, cause: Cause, state: State, edited: State) -> bool:
        """Whether a cause is at a line that an edit has written, or its dtype comes from there."""
        spots = [spot for finding in cause.findings for spot in finding.spots]
        return any(self._wrote(spot.file, spot.line, state, edited) for spot in spots)

    def _truncates(self, cause: Cause, old: Tried, new: Tried) -> bool:
        """Whether an edit makes integers or bools of floats, where something else is wanted."""
        if any(finding.to_dtype is not None and finding.to_dtype not in FLOATING for finding in cause.findings):
            return False
        before = old.lines(old.run.truncated)
        found = [place for place in new.run.truncated if (place[0], new.state.was(*place)) not in before]
        floats = old.lines([line for line, dtype in old.run.results.items() if dtype in FLOATING])
        for (file, line), dtype in new.run.results.items():  # of a factory that takes its dtype of integers
            if not dtype.is_floating_point and not dtype.is_complex and (file, new.state.was(file, line)) in floats:
                found += [(file, line)] if ".dtype" in self._text_of(file, new.state).split("\n")[line - 1] else []
        return any(self._wrote(file, line, old.state, new.state) for file, line in found)

    def _wrote(self, file: str, line: int, state: State, edited: State) -> bool:
        """Whether a line is an edit's."""
        before, after = (self._text_of(file, one).split("\n") for one in (state, edited))
        return before != after and after[line - 1] not in before

    def _judge(self, cause: Cause, old: Tried, new: Tried, counts: bool = False) -> list[Cause] | Refusal:
        """New causes that came with an edit; or why it does not help. Whole numbers that count may be in float64."""
        base, run = old.run, new.run
        if still_found(cause, old.state, new):
            return reasons.STAYS
        if self._truncates(cause, old, new):
            return reasons.TRUNCATES
        if any(self._wrote(file, line, old.state, new.state) for file, line in run.merged):
            return reasons.MERGES
        if self._moves(cause, old, new, ()):
            return reasons.MERGES
        # Digits that cancel are lost in what is added up, and nobody sees it in float64.
        before, after = (one.lines(one.run.promoted(torch.float32, torch.float64)) for one in (old, new))
        made = lost_in_float32(cause)
        exact = counts or any(self._wrote(spot.file, spot.line, old.state, new.state) for spot in made)
        if cause.rule in ("DG902", "DG904") and after - before and not exact:
            return reasons.HIDES
        # What stood before a cause's first edit is no edit's doing, also where one before this had ended the program.
        known = self._standing | old.keys
        brought = sorted(causes_of(finding for finding in run.bad if new.key(finding) not in known), key=rank)
        if run.error:
            there = bool(base.error) and old.lines(base.raised[-1:]) == new.lines(run.raised[-1:])
            if there and any((finding.file, finding.line) in base.raised for finding in cause.findings):
                return reasons.STAYS  # the same exception is still raised, under another message
            if not there and not any(other.severity == Severity.ERROR.value for other in brought):
                return reasons.ends(run)
        if not run.error and not run.stopped and run.status not in (0, base.status):
            return reasons.ends(run)
        spoilt = any(other.rule == "DG901" for other in brought)  # what a model that trains now comes to
        if spoilt or self._output_agrees(cause, base, run):
            return brought
        return reasons.prints(*self._without_noise(base, run))
