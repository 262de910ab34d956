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

from ..._core.base.dtypes import FLOATING, HALF
from ..._core.base.frames import installed
from ..._engine.watch.rule import RULES, Finding, Severity
from ..._show.report.causes import Cause, causes_of, loses, settles
from . import blocks, classes, moves, numbers, reasons, training
from .casts import Source
from .code import MOVES, Place
from .compared import born_elsewhere, removed_beside, still_found
from .finish import MORE, WAYS, Edited, Way, same_results
from .left import all_near
from .measured import ErrorChange, Errors, errors_of
from .outputs import near, skeletons_agree
from .program import Run, State, Texts, key_of, same_place
from .reasons import Refusal
from .screen import KEPT, Runner, Screen
from .source import Candidate, Change, Unfit

ALL = (blocks, classes, moves, numbers, training)  # importing them enters their moves
_TRIES = 24  # candidates for one cause
_TRIES_MORE = 4  # to make an edit whole
_DEPTH = 3  # edits that one cause may need
_RUNS = 40  # of the program, for one cause
_RUNS_AT_FIRST = 12  # where an exception ends the program: its cause may be another one, and this comes again
# Those where the program may be right as it is: there each digit stays, and no other edit is needed for it.
_EXACT = frozenset(["DG103"])
_NEARLY = 0.02
_AGAINST = frozenset([("narrow_at_birth", "cast_to_wide"), ("cast_to_narrow", "cast_to_wide")])  # one of them is enough
_LATER = {"DG103": -1, "DG108": 1, "DG105": 1, "DG102": 2, "DG110": 3, "DG201": 3, "DG203": 3, "DG205": 3}

# Where one of these is found, others may be what comes of it, and are mended there.
_ROOTS = frozenset(["DG102", "DG501", "DG503", "DG504", "DG602"])


@dataclass(frozen=True)
class Proof:
    """An edit that helps.

    Attributes:
        moves: what was done.
        findings: what it removed, as it was found at first.
        before: the program without it.
        after: the program with it.
        left: the error of results that it leaves, where that is much.
    """

    moves: tuple[str, ...]
    findings: tuple[Finding, ...]
    before: State
    after: State
    left: float = 0.0


Solution = tuple[tuple[str, ...], State, Run]  # the moves, the program with them, and what that came to


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
        self.state, self.last = State({}, {}), first
        self.proofs: list[Proof] = []
        self.faults: list[Exception] = []
        self.refusals: dict[object, Refusal] = {}  # by key: why what came nearest to an edit is none
        self._given_up: set[object] = set()
        self._standing: set[object] = set()  # keys of what else is found where a cause's first edit is tried
        self._sources: dict[tuple[str, str], Source] = {}
        self._ran: dict[tuple[tuple[str, str], ...], Run] = {(): first}
        self._errors: dict[tuple[tuple[str, str], ...], Errors] = {}
        self._first = {self.state.key(finding): finding for finding in first.findings}
        self._last_run = 0  # by which number of runs a cause has its edit, or none
        self._second: Run | None = None  # of the program as it is, to know what differs from run to run

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
                back = all(self._text_of(file, self.state) == text for file, text in edited.texts.items())
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
        while True:
            causes = causes_of(self.last.bad)
            whole = "unsafe" in kinds
            roots = [c for c in causes if not (whole and self._key(c) in self._given_up)]
            pending = [
                cause for cause in causes
                if self._key(cause) not in self._given_up and not any(_comes_of(cause, root) for root in roots)
            ]  # fmt: skip
            now = time.monotonic()
            if now > self._ends:
                self.untried.update(map(self._key, pending))
            if not pending or now > self._ends:
                return
            first = min(pending, key=_rank)
            self._pauses = now + (self._ends - now) / 2  # a hard one leaves time for the others
            ended = self.last.error
            if self._mend_cause(first, kinds):
                if ended and not self.last.error:  # it runs to its end now, and judges otherwise
                    self._given_up, self.refusals = set(self._skip), {}
            else:
                self._given_up.add(self._key(first))
                if self._is_over:
                    self.untried.add(self._key(first))

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._pauses

    def _key(self, cause: Cause) -> tuple[str, str | None, int]:
        return self.state.key(cause.first)

    def _mend_cause(self, cause: Cause, kinds: tuple[str, ...]) -> bool:
        solve = self._guess if self._run is None else self._solve
        self._last_run = len(self._ran) + (_RUNS_AT_FIRST if self.last.error else _RUNS)
        own = {self.state.key(finding) for finding in cause.findings}
        self._standing = {key for key in map(self.state.key, self.last.bad) if key not in own}
        tried: list[tuple[float, tuple[str, ...], State, Run]] = []
        for names, state, run in itertools.islice(solve([cause], self.state, self.last, kinds, _DEPTH), _TRIES_MORE):
            if self._run is not None:
                if len(names) > 1 and self._moves(cause, self.state, self.last, state, run, kinds):
                    continue  # with each of several edits what is left of the program may be less
                ways, state, run = self._finished(cause, state, run)
                names = (*names, *ways)
            others = any(map(loses, causes_of(run.bad)))  # then what is left may come from these
            measures = self._run is not None and loses(cause) and not others
            left = self._change(cause, self.state, self.last, state).left if measures else 0.0
            tried.append((left, names, state, run))
            if not left:
                break
        if not tried:
            return False
        left, names, state, run = min(tried, key=operator.itemgetter(0))
        keys = {state.key(finding) for finding in run.bad}
        gone = [(self.state.key(f), f) for f in self.last.bad if self.state.key(f) not in keys]
        gone = [(key, f) for key, f in gone if f in cause.findings or self._is_mended(f, state, run)]
        if not gone:  # a later edit took back what an earlier one did
            return False
        findings = [self._first.get(key) or replace(f, line=key[2]) for key, f in gone]
        self.proofs.append(Proof(names, tuple(findings), self.state, state, left))
        self.state, self.last = state, run
        return True

    def _finished(self, cause: Cause, state: State, run: Run) -> Solution:
        """An edit that helps, made whole: see `finish`."""
        ways: list[str] = []
        for way in WAYS:
            if way is same_results and (cause.rule in _EXACT or self._is_exact(cause, state, run)):
                continue  # which rounds
            for _ in range(_DEPTH):
                better = next(self._better(way, cause, state, run), None)
                if better is None:
                    break
                state, run = better
                ways.append(way.__name__)
        return tuple(ways), state, run

    def _is_mended(self, finding: Finding, state: State, run: Run) -> bool:
        """Whether an edit has to do with it that a finding is gone: its values are less wrong, where that is known."""
        (cause,) = causes_of([finding])
        known = run.errors is not None and cause.rule.startswith("DG9") and not self._touches(cause, state, self.state)
        return not known or not self._change(cause, self.state, self.last, state).keeps

    def _is_exact(self, cause: Cause, state: State, run: Run) -> bool:
        """Whether values that had lost digits have all of them with an edit, as counts do."""
        return run.errors is not None and self._change(cause, self.state, self.last, state).exact

    def _better(self, way: Way, cause: Cause, state: State, run: Run) -> Iterator[tuple[State, Run]]:
        nearly = 0.0 if cause.rule in _EXACT else _NEARLY
        for file in [file for file, text in state.texts.items() if text != self.state.texts.get(file)]:
            tried = list(way(self._edited(file, state, run)))[:_TRIES_MORE]
            for changes in filter(None, tried if not self._is_over else ()):
                with contextlib.suppress(SyntaxError, ValueError):
                    edited = state.edited(changes, self._read)
                    ran = self._run_with(edited.texts)
                    keys = {edited.key(finding) for finding in ran.findings}
                    if (
                        not self._writes_to_copy(file, state, edited)
                        and keys <= {state.key(finding) for finding in run.findings}
                        and self._judge(cause, self.state, self.last, edited, ran) == []
                        and (way in MORE or self._numbers_agree(run, ran, nearly))
                        and len(list(way(self._edited(file, edited, ran)))) < len(tried)
                    ):
                        yield edited, ran

    def _edited(self, file: str, state: State, run: Run) -> Edited:
        old, new = (self._text_of(file, one).split("\n") for one in (self.state, state))
        written = frozenset(number for number, line in enumerate(new, 1) if line not in old)
        return Edited(
            self._source(file, state), self._source(file, self.state), self.state, state, self.last, run, written
        )

    def _guess(
        self, causes: list[Cause], state: State, base: Run, kinds: tuple[str, ...], depth: int
    ) -> Iterator[Solution]:
        """The best candidate, which nobody has tried."""
        for name, edited in self._edits(causes[0], state, kinds, depth):
            rest = [finding for finding in base.findings if finding not in causes[0].findings]
            yield (name,), edited, Run(rest, base.status, base.error)

    def _solve(
        self, causes: list[Cause], state: State, base: Run, kinds: tuple[str, ...], depth: int
    ) -> Iterator[Solution]:
        """Edits that help, the best first."""
        cause, *rest = causes
        for name, edits in itertools.groupby(self._edits(cause, state, kinds, depth), key=operator.itemgetter(0)):
            later: list[tuple[State, Run, list[Cause]]] = []
            for _, edited in edits:
                if len(self._ran) > self._last_run or self._is_over:
                    return
                refuse = functools.partial(self._refuse, cause, state, depth)
                if key_of(edited.texts) not in self._ran and self._screen and self._screen.stays(cause, state, edited):
                    refuse(reasons.STAYS)
                    continue
                run = self._run_with(edited.texts)
                new = self._judge(cause, state, base, edited, run)
                exact = kinds == ("safe",) and cause.rule in KEPT
                as_it_is = exact and cause.rule in _EXACT and not base.error
                if new is reasons.STAYS and depth > 1 and (others := born_elsewhere(cause, state, run, edited)):
                    later.append((edited, run, others))
                    continue
                if isinstance(new, Refusal):
                    refuse(new)
                    continue
                if exact and not self._numbers_agree(base, run, 0.0 if as_it_is else _NEARLY):
                    refuse(reasons.COPIES)
                    more = removed_beside(cause, state, base, edited, run)
                    if as_it_is and not new and (more or _widens(cause.first)):  # it is wanted, though not safe
                        return
                    continue
                if new:
                    refuse(reasons.brings(*edited.key(new[0].first)))
                if new and as_it_is:
                    continue
                new += [other for other in rest if still_found(other, state, run, edited)]
                if not new:
                    if self._repairs(cause, state, base, edited, run):
                        yield (name,), edited, run
                    else:
                        refuse(reasons.WRONG)
                    continue
                if depth > 1 and len(new) <= 3:
                    later.append((edited, run, new))
            # An edit removed an error that had ended the program; what is found only now, further on, does not count
            # against it.
            for edited, run, new in later:
                first = {self.state.key(finding) for finding in self.last.bad}
                again = any(edited.key(cause.first) in first for cause in new)
                hid = base.error or cause.rule == "DG109"  # numbers that have wrapped are not compared with others
                behind = hid and not run.error and not again
                if behind and not any(self._touches(c, state, edited) for c in new):
                    yield (name,), edited, run
            for edited, run, new in later[:3]:
                solved = self._solve(new, edited, run, kinds, depth - 1)
                found = next((one for one in solved if not any((name, other) in _AGAINST for other in one[0])), None)
                if found is not None and self._repairs(cause, state, base, *found[1:]):
                    yield (name, *found[0]), *found[1:]

    def _refuse(self, cause: Cause, state: State, depth: int, why: Refusal) -> None:
        key, nothing = state.key(cause.first), Refusal(-1, "")
        if depth == _DEPTH and why.near > self.refusals.get(key, nothing).near:
            self.refusals[key] = why

    def _repairs(self, cause: Cause, state: State, base: Run, edited: State, run: Run) -> bool:
        """Whether values that had lost much at the lines of a cause are nearer to what they would be, and what leaves
        the program is not further from it; True where nothing of that is to be measured.

        What was rounded before is as wrong in a wider dtype, in which a rule may not see it any more.
        """
        if self._run is None or not (loses(cause) or self._narrows(state, base, edited, run)):
            return True
        change = self._change(cause, state, base, edited)
        return (change.repairs or not loses(cause)) and not change.spoils

    def _narrows(self, state: State, base: Run, edited: State, run: Run) -> bool:
        """Whether an edit casts floats to half precision where nothing was cast so before."""
        before, after = (
            {(file, which.was(file, line)) for file, line in one.halved}
            for which, one in ((state, base), (edited, run))
        )
        return not after <= before

    def _change(self, cause: Cause, state: State, base: Run, edited: State) -> ErrorChange:
        places = {(f.file, state.key(f)[2]) for f in cause.findings if f.file is not None}
        return ErrorChange(self._errors_of(state), self._errors_of(edited), places, bool(base.error))

    def _errors_of(self, state: State) -> Errors:
        """How wrong values are."""
        key = key_of(state.texts)
        if key not in self._errors:
            assert self._run is not None
            run = self._ran.get(key)
            self._errors[key] = errors_of(
                state, self._run(state.texts, values=True) if run is None or run.errors is None else run
            )
        return self._errors[key]

    def _run_with(self, texts: Texts) -> Run:
        """The program with these texts; with the same ones it runs once."""
        key = key_of(texts)
        if key not in self._ran:
            assert self._screen is not None
            self._ran[key] = self._screen.timed(texts)
        return self._ran[key]

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

    def _output_agrees(self, base: Run, run: Run) -> bool:
        """Whether a run prints what the one before did, but for what differs from run to run."""
        if skeletons_agree(base, run, base.lines, run.lines):
            return True
        return skeletons_agree(base, run, *self._without_noise(base, run))

    def _numbers_agree(self, base: Run, run: Run, nearly: float) -> bool:
        """Whether nearly the same numbers and tensors leave it; of a runner of tests the status tells."""
        if base.status and not base.error:
            return True
        if not near(base.lines, run.lines, nearly) and not near(*self._without_noise(base, run), nearly):
            return False
        return all_near(base, run, nearly) or not all_near(*self._both(), 0.0)

    def _moves(self, cause: Cause, state: State, base: Run, edited: State, run: Run, kinds: tuple[str, ...]) -> bool:
        """Whether results are others, with an edit that is safe or casts float64, whose values were right."""
        single = any(self._wrote(*place, state, edited) for place in run.singled)
        safe = kinds == ("safe",)
        if cause.rule not in KEPT or not (single or safe) or self._numbers_agree(base, run, _NEARLY):
            return False
        if safe or not base.steps:
            return True
        return self._change(cause, state, base, edited).spoils  # else it may be the course of a training

    def _touches(self, cause: Cause, state: State, edited: State) -> bool:
        """Whether a cause is at a line that an edit has written, or its dtype comes from there."""
        spots = [spot for finding in cause.findings for spot in finding.spots]
        return any(self._wrote(spot.file, spot.line, state, edited) for spot in spots)

    def _truncates(self, cause: Cause, state: State, base: Run, edited: State, run: Run) -> bool:
        """Whether an edit makes integers or bools of floats, where something else is wanted."""
        if any(finding.to_dtype is not None and finding.to_dtype not in FLOATING for finding in cause.findings):
            return False
        before = {(file, state.was(file, line)) for file, line in base.truncated}
        new = [place for place in run.truncated if (place[0], edited.was(*place)) not in before]
        return any(self._wrote(file, line, state, edited) for file, line in new)

    def _wrote(self, file: str, line: int, state: State, edited: State) -> bool:
        """Whether a line is an edit's."""
        old, new = (self._text_of(file, one).split("\n") for one in (state, edited))
        return old != new and new[line - 1] not in old

    def _judge(self, cause: Cause, state: State, base: Run, edited: State, run: Run) -> list[Cause] | Refusal:
        """New causes that came with an edit; or why it does not help."""
        if still_found(cause, state, run, edited):
            return reasons.STAYS
        if self._truncates(cause, state, base, edited, run):
            return reasons.TRUNCATES
        if any(self._wrote(file, line, state, edited) for file, line in run.merged):
            return reasons.MERGES
        if self._moves(cause, state, base, edited, run, ()):
            return reasons.MERGES
        # Digits that cancel are lost in what is added up, and nobody sees it in float64.
        before, after = (
            {(file, which.was(file, line)) for file, line in one.promoted(torch.float32, torch.float64)}
            for which, one in ((state, base), (edited, run))
        )
        if cause.rule == "DG902" and after - before:
            return reasons.HIDES
        # What stood before a cause's first edit is no edit's doing, also where one before this had ended the program.
        known = self._standing | {state.key(finding) for finding in base.bad}
        new = causes_of(finding for finding in run.bad if edited.key(finding) not in known)
        if run.error:
            there = same_place(state, base, edited, run)
            if there and any((finding.file, finding.line) in base.raised for finding in cause.findings):
                return reasons.STAYS  # the same exception is still raised, under another message
            if not there and not any(other.severity == Severity.ERROR.value for other in new):
                return reasons.ends(run)
        if not run.error and not run.stopped and run.status not in (0, base.status):
            return reasons.ends(run)
        return new if self._output_agrees(base, run) else reasons.prints(*self._without_noise(base, run))


def _widens(finding: Finding) -> bool:
    """Whether it is about a cast from half precision, which loses nothing."""
    return finding.from_dtype in HALF and finding.to_dtype in (torch.float32, torch.float64)


def _comes_of(cause: Cause, root: Cause) -> bool:
    """Whether one finding names the line of the other."""
    if root.rule not in _ROOTS:
        return settles(root, cause)
    if root.rule == "DG602" and cause.rule in ("DG101", "DG102"):
        return True
    if _rank(cause) <= _rank(root):
        return False
    places = [(finding.site or "").partition(", in ")[0] for finding in (cause.first, root.first)]
    born = " ".join(cause.first.origin) + cause.first.message
    return f"{places[0]}," in root.first.message + "," or f"{places[1]}," in born


def _rank(cause: Cause) -> tuple[bool, int]:
    """Causes before what comes of them: values of a wrong dtype, then what they do, then what is refused for it."""
    return bool(RULES[cause.rule].follows), _LATER.get(cause.rule, 1 if cause.rule.startswith("DG9") else 0)
