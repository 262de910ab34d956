"""`audit --diff` and `audit --fix`: edits for what an audit found, proven by running the program again."""

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..._core.base.frames import installed, shown
from ..._core.base.progress import task, tell
from ..._core.base.usage import INTERRUPTED, Usage
from ..._engine.watch.rule import RULES, Finding
from ..._engine.watch.selection import reaches
from ..._show.report.baseline import Baseline
from ..._show.report.causes import Cause, causes_of
from ..._show.report.edits import Edit, EditError, write_edits
from ..._show.report.report import AuditReport
from ..._show.text import number

if TYPE_CHECKING:  # they need libcst
    from .program import Run

_MADE = re.compile(
    rb"@generated|\bgenerated\b.*\bdo not edit\b|\bdo not edit\b.*\bgenerated\b", re.IGNORECASE | re.DOTALL
)
_LIMIT, _SEARCH = 60.0, 300.0  # seconds, of one run and of all
_AT_LEAST = 16  # runs that a search may take, where they are slow
_NEEDS = {
    "EOFError": "it asks for input",
    "Inappropriate ioctl": "it needs a terminal",
    "not a terminal": "it needs a terminal",
    "ould not find terminal": "it needs a terminal",
    "Address already in use": "it opens a port, which its first run still has",
}
_ELSEWHERE = {
    "No inf checks were recorded": "DG312"
}  # exceptions that another line leads to, by the rule that tells it


class Mending:
    """The edits of one run of the command. It is made before the program runs, of whose files it keeps a copy.

    Attributes:
        edits: that were found, and not written.
        written: those that were.
        left: the findings that stay.
        status: the exit status of the program with what was written, or None.
        notes: what else is to be told.

    Raises:
        Usage: for options that do not go together, and where libcst is missing.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        if options.diff and options.fix:
            raise Usage("--diff shows edits and writes nothing, --fix writes them: give one of the two")
        if importlib.util.find_spec("libcst") is None:
            raise Usage("edits need libcst: pip install 'dtypeguard[fix]'")
        if options.prove and not hasattr(os, "fork"):
            raise Usage("edits are proven by processes that are forked, which this system does not have: --no-prove")
        from .copies import TooLarge
        from .runs import Runs

        self.edits: list[Edit] = []
        self.written: list[Edit] = []
        self.status: int | None = None
        self.left: list[Finding] = []
        self.notes: list[str] = []
        self._refusals: dict[object, str] | None = None  # where nothing was searched
        self._untried: set[object] = set()
        self._reported: set[object] = set()
        self._late: set[object] = set()  # found when a run that proves edits has been stopped
        self._limit: float = options.search_limit or _SEARCH
        self._prove: float = options.prove_limit or _LIMIT
        self._options, self._began, self._folder = options, time.time(), os.getcwd()
        self._interrupt = signal.getsignal(signal.SIGINT)
        self._runs: Runs | None = None
        names = ("select", "ignore", "values", "every", "source", "omit", "program", "module")
        asked = {name: getattr(options, name) for name in names}
        asked["arguments"] = list(options.arguments)
        if options.prove:
            try:
                self._runs = Runs(asked, self._folder, self._prove)
            except (TooLarge, OSError) as error:
                self.notes.append(f"no edits: {error}; --no-prove gives guesses")

    # ------------------------------------------------------------ the search

    def mend(self, report: AuditReport, status: int, baseline: Baseline | None) -> list[Edit]:
        """Find edits for what is new, prove and write them, as it was asked for; all that were found."""
        try:
            os.chdir(self._folder)  # the program may have gone elsewhere
            signal.signal(signal.SIGINT, self._interrupt)
            new = report.findings if baseline is None else baseline.new(report.findings)
            self._reported = set(map(_place, report.findings))
            self.left = [finding for finding in new if reaches(finding.severity, "warning")]
            if status == INTERRUPTED:
                raise KeyboardInterrupt
            if self.left and (self._runs is not None or not self._options.prove):
                self._mend(report, status)
        except KeyboardInterrupt:
            self.edits, self.status = [], INTERRUPTED
            self.notes.append("interrupted: nothing was written")
        except OSError as error:
            self.notes.append(f"no edits: {error}")
        finally:
            if self._runs is not None:
                self._runs.close()
        return [*self.written, *self.edits]

    def _mend(self, report: AuditReport, status: int) -> None:
        from .edits import searched, since
        from .program import Run
        from .runs import Failed, moved, real

        unsafe = not self._options.fix or self._options.unsafe_fixes
        first = Run([moved(finding, real) for finding in report.findings], status, report.error or "")
        keys = [(f.rule, f.file or "", f.line or 0) for f in first.findings]
        pairs = sorted(zip(keys, report.findings, strict=True), key=lambda pair: pair[1] in self.left)
        own: dict[object, Finding] = dict(pairs)  # of several at one line one that is wanted
        known = frozenset(key for key in own if own[key] not in self.left)
        runs, last = self._runs, first
        if runs is None:
            data = functools.partial(since, self._began)
            edits, search = searched(first, None, lambda file: installed(file) is None, unsafe, known, data)
        else:
            runs.wanted = [(f.rule, f.line or 0) for f in self.left]
            try:
                with task("proving edits"):
                    last = runs({})
                    if reason := _unlike(first, last):
                        self.notes.append(f"no edits: {reason}")
                        return
                    runs.operations = last.operations if last.stopped else 0
                    late = set(map(_place, first.bad)) - set(map(_place, last.bad))
                    self._late = {_place(own[key]) for key in late}

                    def run(texts: Mapping[str, str], values: bool | None = None, operations: int = 0) -> Run:
                        tell(lambda: number(runs.whole, "run"))
                        try:
                            return runs(texts, values, operations)
                        except Failed as error:  # with an edit that does not help
                            return Run([], 1, str(error))

                    if not self._options.search_limit:
                        self._limit = max(self._limit, _AT_LEAST * runs.seconds)
                    edits, search = searched(last, run, runs.tree.mine, unsafe, known, runs.data, self._limit)
            except Failed as error:
                self.notes.append(f"no edits: {error}")
                return
            made, ran = number(len(edits), "edit"), f"{number(runs.whole, 'run')} of {self._options.program}"
            self.notes.append(f"{made}, proven by {ran}" if edits else f"no edit: {ran} proved none")
        self.edits = [
            dataclasses.replace(edit, findings=tuple(own.get(_place(one), one) for one in edit.findings))
            for edit in edits
        ]
        key: Callable[[Finding], object] = _place
        if self._options.fix and self._write():
            key = search.now.key
            later = [finding for finding in self.left if _place(finding) in self._late]
            self.left = [*(f for f in search.last.bad if key(f) not in known), *later]
            self.status = 0 if search.last.stopped else search.last.status
        self._untried = {_place(f) for f in self.left if key(f) in search.untried}
        self._refusals = {_place(f): search.refusals[key(f)].text for f in self.left if key(f) in search.refusals}

    # ------------------------------------------------------------ files

    def _write(self) -> bool:
        """Write what was asked for; whether all of it was."""
        chosen = [edit for edit in self.edits if (edit.safe or self._options.unsafe_fixes) and not edit.installed]
        for edit in list(chosen):
            for file in edit.after:
                if reason := _why_kept(file):
                    self.notes.append(f"{shown(file)} is not written: {reason}")
                    chosen = [one for one in chosen if file not in one.after]
        if not chosen:
            return False
        try:
            back = _back(chosen)
            files = write_edits(chosen)
        except (EditError, OSError) as error:
            self.notes.append(f"nothing is written: {error}")
            return False
        self.written = chosen
        self.edits = [edit for edit in self.edits if edit not in chosen]
        names = ", ".join(shown(file) for file in files)
        self.notes.append(f"{number(len(chosen), 'edit')} written to {names}; {back}")
        return not [edit for edit in self.edits if not edit.installed]

    # ------------------------------------------------------------ as text

    def lines(self) -> Iterator[str]:
        """The edits, safe ones and others apart, and what has none."""
        packages = [edit for edit in self.edits if edit.installed]
        groups = {
            "safe, --fix writes it": [edit for edit in self.edits if edit.safe and not edit.installed],
            "not safe, --fix --unsafe-fixes writes it": [e for e in self.edits if not e.safe and not e.installed],
            "for the authors of a package, never written": packages,
        }
        for what, edits in groups.items():
            for edit in edits:
                proven = "" if edit.proven else "not proven, "
                yield f"# {edit.does} ({proven}{what}): removes {edit.removes}"
                yield from _told(f for f in edit.findings if _place(f) not in self._reported)
                yield edit.diff
        for edit in self.written:
            yield f"{'fixed' if edit.proven else 'edited'} {edit.place}: {edit.does}: removes {edit.removes}"
            yield from _told(edit.findings)  # they are not among those that are left, which a report shows
        mended = {_place(finding) for edit in self.edits for finding in edit.findings}
        left = [] if self.status == INTERRUPTED else self.left  # for whatever was not tried
        causes = list(causes_of(finding for finding in left if _place(finding) not in mended))
        untried = [cause.first for cause in causes if _place(cause.first) in self._untried]
        if untried:
            places = ", ".join(f"{f.rule} at {shown(f.file or '')}:{f.line}" for f in untried)
            yield f"not all was tried within {self._limit:g} s (--search-limit) for {places}"
        for cause in causes:
            if cause.first in untried:
                continue
            what, why = "edit", _why(cause)
            if not why and _place(cause.first) in self._late:
                why = f": it comes later than a run that proves edits may take (--prove-limit, {self._prove:g} s)"
            if not why and self._options.fix and not self._options.unsafe_fixes and RULES[cause.rule].unsafe:
                what, why = "safe edit", ": --diff looks for one that is not safe"
            unknown = "such code" if RULES[cause.rule].safe or RULES[cause.rule].unsafe else "this rule"
            if not why and self._refusals is None:
                continue  # the notes say why nothing was tried
            why = why or f": {(self._refusals or {}).get(_place(cause.first), f'none is known for {unknown}')}"
            yield f"no {what} for {cause.rule} at {shown(cause.first.file or '')}:{cause.first.line}{why}"
        yield from self.notes


def _told(findings: Iterable[Finding]) -> Iterable[str]:
    """What findings say that no report shows, as those behind an exception that an edit takes away."""
    return dict.fromkeys(f"  {f.rule}: {RULES[f.rule].summary.rstrip('.')}: {f.message}" for f in findings)


def _place(finding: Finding) -> tuple[str, str | None, int | None]:
    return finding.rule, finding.file, finding.line


def _unlike(first: "Run", control: "Run") -> str:
    """Why a program that was run again says nothing of edits; nothing where it did what it did at first."""
    if control.outside:
        return f"it writes {control.outside}, outside of its working tree, so it is not run again; --no-prove guesses"
    needs = next((what for text, what in _NEEDS.items() if text in control.error), "")
    if needs and control.error != first.error:
        return f"{needs}, so it cannot be run again by itself ({control.error.partition(chr(10))[0]})"
    if control.error and not first.error:
        return f"run again it ends with {control.error.partition(chr(10))[0]}"
    errors = [finding for finding in control.bad if finding.severity == "error"]
    told = {rule for text, rule in _ELSEWHERE.items() if text in control.error}
    if control.error and not any((f.file, f.line) in control.raised or f.rule in told for f in errors):
        return f"it ends with an exception that no finding explains ({control.error.partition(chr(10))[0]})"
    found, again = (set(map(_place, run.bad)) for run in (first, control))
    if odd := sorted((again - found) | (set() if control.stopped else found - again), key=str):
        rule, file, line = odd[0]
        often = "only at first" if odd[0] in found else "only when it ran again"
        return f"it is not deterministic: {rule} at {shown(str(file))}:{line} was found {often}"
    return ""


def _why_kept(file: str) -> str:
    """Why a file is left as it is."""
    if not os.stat(file).st_mode & 0o222 or not os.access(file, os.W_OK):  # the first also for root
        return "it may only be read"
    with open(file, "rb") as stream:
        if _MADE.search(stream.read(1000)):
            return "its head says that it is generated: change what makes it"
    return ""


def _why(cause: Cause) -> str:
    """Why nothing could be written, where that is known."""
    file = cause.first.file or ""
    if installed(file) is not None:
        return ": it is in an installed package"
    if "ipython-input" in file or os.sep + "ipykernel_" in file:
        return ": it is in a cell of a notebook; `%%dtypeguard --fix` edits cells"
    if file.startswith("<") or not os.path.isfile(file):
        return ": its code has no file, it was made while the program ran"
    return ""


def _back(edits: list[Edit]) -> str:
    """How to take edits back: by git, where the files are as they were committed, or from a copy."""
    before: dict[str, bytes] = {}
    for edit in edits:
        for file, data in edit.before.items():
            before.setdefault(file, data)
    if all(_committed(file) == data for file, data in before.items()):
        return f"`git restore -- {shlex.join(map(shown, before))}` takes that back"
    folder = tempfile.mkdtemp(prefix="dtypeguard-undo-")
    commands = []
    for place, (file, data) in enumerate(before.items()):
        kept = os.path.join(folder, f"{place}-{os.path.basename(file)}")
        Path(kept).write_bytes(data)
        commands.append(shlex.join(["cp", kept, shown(file)]))
    return f"`{'; '.join(commands)}` takes that back"


def _committed(file: str) -> bytes | None:
    """A file as it was committed last."""
    with contextlib.suppress(OSError):
        head = ["git", "show", f"HEAD:./{os.path.basename(file)}"]
        kept = subprocess.run(head, cwd=Path(file).parent, capture_output=True, check=False)
        return None if kept.returncode else kept.stdout
    return None
