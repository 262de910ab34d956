"""Edits of the program's files, as data: what they change, what they remove, and how they are written."""

import difflib
import linecache
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..._core.base.frames import installed, shown
from ..._engine.watch.rule import Finding
from ..._show.result import Row
from ..files import write


@dataclass(frozen=True, slots=True)
class Replacement:
    """One place that an edit changes, in the file as the edits before it leave it.

    Attributes:
        path: the file.
        line: where what goes begins, counted from 1.
        column: the same, in bytes of the file, counted from 0.
        end_line: where it ends.
        end_column: the same; where nothing goes, both ends are one.
        text: what comes there, with its line ends.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines that an edit changes, by the numbers that they had before any edit.

    Attributes:
        path: the file.
        line: the first line that goes.
        end_line: the line behind the last one; the same, where nothing goes.
        text: the lines that come there.
    """

    path: str
    line: int
    end_line: int
    text: str


@dataclass(frozen=True, slots=True)
class Edit(Row):
    """A change of the program that removes findings.

    Attributes:
        path: the file, from the working directory; the first one, where several are changed.
        diff: a unified diff, as `git apply` and `patch -p1` take it. It begins where the edits before it end.
        findings: what it removes.
        safe: whether no right result changes with it; what is not safe changes numbers or memory on purpose.
        proven: whether the program ran with it, and it did remove the findings and brought no new ones.
        does: what is done, in a few words.
        replacements: the places that change.
        blocks: the lines that change.
    """

    path: str
    diff: str
    findings: tuple[Finding, ...]
    safe: bool
    proven: bool
    does: str
    replacements: tuple[Replacement, ...]
    blocks: tuple[Block, ...] = field(repr=False)
    before: Mapping[str, bytes] = field(repr=False)
    after: Mapping[str, bytes] = field(repr=False)

    def __repr__(self) -> str:
        safe, proven = ("safe" if self.safe else "not safe"), ("proven" if self.proven else "not proven")
        return f"<edit of {self.path}: {self.does} ({safe}, {proven}): removes {self.removes}>"

    def data(self, findings: list[Finding]) -> dict[str, object]:
        """The edit as plain data; what it removes by the numbers of findings."""
        places = {(f.rule, f.file, f.line) for f in self.findings}
        numbers = [number for number, f in enumerate(findings) if (f.rule, f.file, f.line) in places]
        return {
            "path": self.path, "does": self.does, "safe": self.safe, "proven": self.proven, "diff": self.diff,
            "findings": numbers, "replacements": list(self.replacements),
        }  # fmt: skip

    @property
    def installed(self) -> bool:
        """Whether a file of an installed package would change, which is never written."""
        return any(installed(file) is not None for file in self.after)

    @property
    def place(self) -> str:
        """The first line that changes: `train.py:8`."""
        return f"{self.path}:{self.blocks[0].line}" if self.blocks else self.path

    @property
    def removes(self) -> str:
        """The rules and lines of what goes, in words."""
        places = list(dict.fromkeys(f"{f.rule} at {shown(f.file or '')}:{f.line}" for f in self.findings))
        more = [f"{len(places) - 4} more"] if len(places) > 4 else []
        *some, last = [*places[:4], *more] or ["nothing by itself"]
        return f"{', '.join(some)} and {last}" if some else last


class EditError(ValueError):
    """An edit that cannot be written: the file is not what it was when the program ran."""


def path_of(file: str) -> str:
    """A file as a tool finds it from the working directory."""
    return shown(file) if installed(file) is None else file


def diff_of(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A unified diff of files, with paths from the working directory."""
    parts: list[str] = []
    for file, text in after.items():
        path = path_of(file)
        outside = os.path.isabs(path) or path.startswith("..")
        name = os.path.abspath(file).lstrip(os.sep) if outside else path
        for line in difflib.unified_diff(_lines(before[file]), _lines(text), f"a/{name}", f"b/{name}"):
            parts += [line] if line.endswith("\n") else [f"{line}\n\\ No newline at end of file\n"]
    return "".join(parts)


def _lines(text: str) -> list[str]:
    """The lines of a file, as `patch` counts them."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]


def blocks_of(file: str, before: str, after: str, was: list[int]) -> Iterator[Block]:
    """The lines of a file that change; `was` tells which line each one was at first."""
    for a, b, gone, come in _changed(before, after):
        first = was[a] if a < len(was) else len(was) + 1
        yield Block(path_of(file), first, max(was[b - 1] + 1, first) if gone else first, come)


def replacements_of(file: str, before: str, after: str, encoding: str) -> Iterator[Replacement]:
    """The same to the column, in the file as it is before the edit."""
    for a, _, gone, come in _changed(before, after):
        head = _common_length(gone, come)
        tail = _common_length(gone[head:][::-1], come[head:][::-1])
        ends = [_end_of(gone[:head], a + 1, encoding), _end_of(gone[: len(gone) - tail], a + 1, encoding)]
        yield Replacement(path_of(file), *ends[0], *ends[1], come[head : len(come) - tail])


def _changed(before: str, after: str) -> Iterator[tuple[int, int, str, str]]:
    """The lines that go, by their places counted from 0, and both texts."""
    old, new = _lines(before), _lines(after)
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            yield a, b, "".join(old[a:b]), "".join(new[c:d])


def _common_length(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))


def _end_of(text: str, line: int, encoding: str) -> tuple[int, int]:
    """Line and column behind a text that begins with a line."""
    plain = "utf-8" if encoding == "utf-8-sig" else encoding
    return line + text.count("\n"), len(text.rpartition("\n")[2].encode(plain))


def write_edits(edits: Iterable[Edit]) -> list[str]:
    """Write edits that follow one another, each file at once, and give the files; with an EditError nothing is.

    A file keeps its mode, owner, line ends, encoding and byte order mark.
    """
    first: dict[str, bytes] = {}
    last: dict[str, bytes] = {}
    for edit in edits:
        if edit.installed:
            told = "belongs to an installed package, which is never written: send its authors the diff"
            raise EditError(f"{edit.path} {told}")
        for file, data in edit.after.items():
            first.setdefault(file, edit.before[file])
            last[file] = data
    for file, data in first.items():
        with open(file, "rb") as stream:
            if stream.read() != data:
                raise EditError(f"{shown(file)} has changed since the program ran: nothing is written; run it again")
    for file, data in last.items():
        _pin(file)
        write(file, data)
    return list(last)


def _pin(file: str) -> None:
    """Let this process, whose code is of the lines before, quote them in later reports and tracebacks."""
    if lines := linecache.getlines(file):
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)  # without a time it is not read again


Block.__module__ = Edit.__module__ = EditError.__module__ = Replacement.__module__ = "dtypeguard.results"
