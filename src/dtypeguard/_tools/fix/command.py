"""`audit --diff` and `audit --fix`: edits for what an audit found, proven by running the program again."""

import argparse
import contextlib
import importlib.util
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..._core.base.frames import installed, shown
from ..._core.base.progress import task, tell
from ..._core.base.usage import Usage
from ..._engine.watch.rule import Finding
from ..._engine.watch.selection import reaches
from ..._show.report.baseline import Baseline
from ..._show.report.causes import Cause, causes_of
from ..._show.report.edits import Edit, EditError, write_edits
from ..._show.report.report import AuditReport
from ..._show.text import number

if TYPE_CHECKING:  # they need libcst
    from .search import Run

_MADE = re.compile(rb"@generated|\bdo not edit\b|\bauto-?generated\b", re.IGNORECASE)  # what generators write
_NEEDS = {
    "EOFError": "it asks for input",
    "Inappropriate ioctl": "it needs a terminal",
    "not a terminal": "it needs a terminal",
    "ould not find terminal": "it needs a terminal",
    "Address already in use": "it opens a port, which its first run still has",
}


class Mending:
    """The edits of one run of the command.

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
        from .runs import Program, listed

        self.edits: list[Edit] = []
        self.written: list[Edit] = []
        self.status: int | None = None
        self.left: list[Finding] = []
        self.notes: list[str] = []
        self._options = options
        folder, script = os.getcwd(), os.path.realpath(options.program)
        inside = options.module or script.startswith(os.path.realpath(folder) + os.sep)
        root = folder if inside else os.path.dirname(script)
        asked = {name: getattr(options, name) for name in ("select", "ignore", "values", "every", "program", "module")}
        self._program = Program(
            {**asked, "arguments": list(options.arguments)}, folder, root, dict(os.environ), time.time(),
            listed(root) if options.prove else None,
        )  # fmt: skip

    # ------------------------------------------------------------ the search

    def mend(self, report: AuditReport, status: int, baseline: Baseline | None) -> None:
        """Find edits for what is new, prove and write them, as it was asked for."""
        from .edits import searched
        from .search import Run

        findings = list(report.findings) if baseline is None else baseline.new(report.findings)
        self.left = [finding for finding in findings if reaches(finding.severity, "warning")]
        if not self.left:
            return
        unsafe = not self._options.fix or self._options.unsafe_fixes
        first = Run(list(report.findings), status, report.error or "")
        known = frozenset((f.rule, f.file, f.line) for f in first.bad if f not in self.left)
        try:
            if self._options.prove:
                last = self._proven(first, unsafe, known)
            else:
                self.edits, search = searched(first, None, self._program.mine, unsafe, known)
                last = search.last
            if self._options.fix and self._write() and last is not None:
                self.left = [f for f in last.bad if (f.rule, f.file, f.line) not in known]
                self.status = last.status
        except KeyboardInterrupt:
            self.edits = []
            self.notes.append("interrupted: nothing was written")

    def _proven(self, first: "Run", unsafe: bool, known: frozenset[object]) -> "Run | None":
        """Find edits by running the program; the run with all of them."""
        from .edits import searched
        from .runs import Runs
        from .search import Run

        runs = Runs(self._program, self._options.prove_limit)
        runs.wanted = [(f.rule, f.file or "", f.line or 0) for f in self.left]
        if self._program.there is None:
            self.notes.append(f"{self._program.root} has too many files for a copy: the program ran again where it is")

        def run(texts: dict[str, str]) -> Run:
            tell(lambda: number(runs.count, "run"))
            return runs(texts)

        try:
            with task("proving edits"):
                control = run({})
                if reason := _unlike(first, control):
                    self.notes.append(f"no edits: {reason}")
                    return None
                if control.stopped:
                    runs.operations = control.operations
                self.edits, search = searched(control, run, self._program.mine, unsafe, known)
                made = number(len(self.edits), "edit")
                self.notes.append(f"{made}, proven by {number(runs.count, 'run')} of {self._options.program}")
                return search.last
        except subprocess.TimeoutExpired:
            limit = f"--prove-limit {self._options.prove_limit:g}"
            self.notes.append(f"no edits: the program did not end when it was run again ({limit})")
        except (OSError, EOFError) as error:
            self.notes.append(f"no edits: the program could not be run again: {error}")
        finally:
            runs.close()
        return None

    # ------------------------------------------------------------ files

    def _write(self) -> bool:
        """Write what was asked for; whether all of it was."""
        chosen = [edit for edit in self.edits if (edit.safe or self._options.unsafe_fixes) and not edit.installed]
        for edit in list(chosen):
            for file in edit.after:
                if reason := _kept(file):
                    self.notes.append(f"{shown(file)} is not written: {reason}")
                    chosen = [one for one in chosen if file not in one.after]
        if not chosen:
            return False
        try:
            files = write_edits(chosen)
        except (EditError, OSError) as error:
            self.notes.append(f"nothing is written: {error}")
            return False
        self.written = chosen
        self.edits = [edit for edit in self.edits if edit not in chosen]
        names = ", ".join(shown(file) for file in files)
        self.notes.append(f"{number(len(chosen), 'edit')} written to {names}; {_back(files, chosen)}")
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
                yield edit.diff
        for edit in self.written:
            yield f"fixed: {edit.does}: removes {edit.removes}"
        mended = [finding for edit in self.edits for finding in edit.findings]
        for cause in causes_of(finding for finding in self.left if not _among(finding, mended)):
            yield f"no edit for {cause.rule} at {(cause.first.site or '').partition(', in ')[0]}{_why(cause)}"
        yield from self.notes


def _among(finding: Finding, others: list[Finding]) -> bool:
    return any((finding.rule, finding.file, finding.line) == (one.rule, one.file, one.line) for one in others)


def _unlike(first: "Run", control: "Run") -> str:
    """Why a program that was run again says nothing of edits; nothing where it did what it did at first."""
    needs = next((what for text, what in _NEEDS.items() if text in control.error), "")
    if needs and control.error != first.error:
        return f"{needs}, so it cannot be run again by itself ({control.error.partition(chr(10))[0]})"
    if control.error and not first.error:
        return f"run again it ends with {control.error.partition(chr(10))[0]}"
    if control.error and not any((f.file, f.line) in control.raised for f in control.bad if f.severity == "error"):
        return f"it ends with an exception that no finding explains ({control.error.partition(chr(10))[0]})"
    found, again = ({(f.rule, f.file, f.line) for f in run.bad} for run in (first, control))
    if odd := sorted((found - again) | (again - found), key=str):
        rule, file, line = odd[0]
        often = "only at first" if odd[0] in found else "only when it ran again"
        return f"it is not deterministic: {rule} at {shown(str(file))}:{line} was found {often}"
    return ""


def _kept(file: str) -> str:
    """Why a file is left as it is."""
    if not os.access(file, os.W_OK):
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


def _back(files: list[str], edits: list[Edit]) -> str:
    """How to take edits back."""
    with contextlib.suppress(OSError):
        tracked = subprocess.run(["git", "ls-files", "--error-unmatch", *files], capture_output=True, check=False)
        if not tracked.returncode and not _dirty(files, edits):
            return f"`git restore {' '.join(map(shown, files))}` takes that back"
    with tempfile.NamedTemporaryFile(
        "w", suffix=".diff", prefix="dtypeguard-", delete=False, encoding="utf-8"
    ) as patch:
        patch.write("".join(edit.diff for edit in edits))
    return f"`patch -R -p1 < {patch.name}` takes that back"


def _dirty(files: list[str], edits: list[Edit]) -> bool:
    """Whether files had changes that are not committed, before the edits."""
    first: dict[str, bytes] = {}
    for edit in edits:
        for file, data in edit.before.items():
            first.setdefault(file, data)
    for file in files:
        head = ["git", "show", f"HEAD:./{os.path.basename(file)}"]
        kept = subprocess.run(head, cwd=Path(file).parent, capture_output=True, check=False)
        if kept.returncode or kept.stdout != first[file]:
            return True
    return False
