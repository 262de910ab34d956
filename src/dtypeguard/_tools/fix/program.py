"""A program with edits: its texts, and what a run of it came to."""

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..._core.base.dtypes import FLOATING, HALF
from ..._engine.watch.findings import Conversion
from ..._engine.watch.rule import Finding, Severity
from ..._engine.watch.selection import reaches
from .casts import CASTING, WIDER_INTEGER
from .left import Sample
from .source import Candidate, apply

Texts = Mapping[str, str]
Line = tuple[str, int]  # a file, and a number
Key = tuple[str, str | None, int]  # of a finding: its rule, and its line before any edit


def key_of(texts: Texts) -> tuple[tuple[str, str], ...]:
    """By which texts are known."""
    return tuple(sorted(texts.items()))


@dataclass
class Run:
    """What a run of the program came to.

    Attributes:
        error: the exception that ended it, or nothing.
        raised: the user's lines at which that was raised, file and number, the outermost first.
        stopped: whether it was stopped, since it had run for long enough.
        operations: how many operations it ran.
        outside: what it tried to write outside of its copy.
        files: the files of the working tree that it has loaded.
        results: by line, file and number, the dtype of what was computed there last.
        merged: the lines at which it casts float64 to float32, which has too few digits for the values.
        errors: by line, file and number, how far its values were from what they would be in a wider dtype, at most;
            None where values were not followed.
        leaving: the same of what left the program at a line: numbers it read, results, what was trained.
        left: samples of the tensors that left it: saved, or as arrays and lists.
    """

    findings: list[Finding]
    status: int = 0
    error: str = ""
    raised: tuple[Line, ...] = ()
    lines: list[str] = field(default_factory=list)
    stopped: bool = False
    operations: int = 0
    outside: str = ""
    files: tuple[str, ...] = ()
    casts: tuple[Conversion, ...] = ()
    results: Mapping[Line, torch.dtype] = field(default_factory=dict)
    merged: tuple[Line, ...] = ()
    errors: Mapping[Line, float] | None = None
    leaving: Mapping[Line, float] | None = None
    left: Sequence[Sample] = ()
    steps: int = 0

    @property
    def bad(self) -> list[Finding]:
        return [finding for finding in self.findings if reaches(finding.severity, Severity.WARNING.value)]

    def _said(self, fits: Callable[[Conversion], bool]) -> list[Line]:
        """The lines at which code casts floats so."""
        explicit = [one for one in self.casts if one.kind == "explicit" and one.given.is_floating_point]
        return [one.place for one in explicit if fits(one)]

    @property
    def widened(self) -> list[Line]:
        """The lines at which code casts floats to wider ones."""
        return self._said(lambda one: one.taken.is_floating_point and one.taken.itemsize > one.given.itemsize)

    @property
    def halved(self) -> list[Line]:
        """The lines at which code casts floats to half precision."""
        return self._said(lambda one: one.taken in HALF and one.given not in HALF)

    @property
    def singled(self) -> list[Line]:
        """The lines at which code casts float64 to float32."""
        return self._said(lambda one: (one.given, one.taken) == (torch.float64, torch.float32))

    @property
    def truncated(self) -> list[Line]:
        """The lines at which code casts floats to integers or bools."""
        return self._said(lambda one: one.calls in CASTING and one.taken not in FLOATING)

    @property
    def joined(self) -> list[Line]:
        """The lines at which integers become floats though no code says so."""
        unsaid = [one for one in self.casts if one.kind in ("write", "promotion") and one.taken in FLOATING]
        return [one.place for one in unsaid if one.given in WIDER_INTEGER.values()]

    def promoted(self, given: torch.dtype, taken: torch.dtype) -> list[Line]:
        """The lines at which one dtype becomes another though no code says so."""
        kinds = ("write", "promotion")
        return [one.place for one in self.casts if one.kind in kinds and (one.given, one.taken) == (given, taken)]


@dataclass(frozen=True)
class State:
    """The program with some edits: the texts of files, and for each line which one it was."""

    texts: Texts
    lines: Mapping[str, list[int]]

    def was(self, file: str, line: int) -> int:
        """The number that a line had before the edits; of a new one, that of the line before."""
        known = self.lines.get(file, ())
        return known[line - 1] if 0 < line <= len(known) else line

    def key(self, finding: Finding) -> Key:
        return finding.rule, finding.file, self.was(finding.file or "", finding.line or 0)

    def numbers(self, file: str, text: str) -> list[int]:
        """For each line of a text which one it was at first."""
        return self.lines.get(file) or [*range(1, text.count("\n") + 2)]

    def edited(self, changes: Candidate, original: Callable[[str], str]) -> "State":
        texts, lines = dict(self.texts), dict(self.lines)
        for file in {change.file for change in changes}:
            before = texts.get(file) or original(file)
            own = [change for change in changes if change.file == file]
            texts[file] = apply(before, own)
            compile(texts[file], file, "exec", dont_inherit=True)
            lines[file] = _first_lines(before, texts[file], lines.get(file))
        return State(texts, lines)


@dataclass(frozen=True)
class Tried:
    """The program with some edits, and what it came to."""

    state: State
    run: Run

    def key(self, finding: Finding) -> Key:
        return self.state.key(finding)

    @functools.cached_property
    def keys(self) -> set[Key]:
        """Of all that is bad."""
        return set(map(self.key, self.run.bad))

    def lines(self, places: Iterable[Line]) -> set[Line]:
        """Lines by the numbers that they had before the edits."""
        return {(file, self.state.was(file, line)) for file, line in places}


def _first_lines(before: str, after: str, known: list[int] | None) -> list[int]:
    """For each line of a text which line it was in the one before, and so in the first."""
    old, new = before.split("\n"), after.split("\n")
    found: list[int] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for number in range(d - c):
            at = min(a + number, b - 1) if kind != "insert" else max(a - 1, 0)
            found.append(known[at] if known and at < len(known) else at + 1)
    return found
