"""What an audit found: to print, to compare, to keep."""

import dataclasses
import datetime
import os
import re
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Literal, TextIO, cast

from torch import Tensor
from typing_extensions import TypeVar

from ..._core.base.errors import summary
from ..._core.base.frames import let_go, shown
from ..._core.base.options import explained, one_of, switch
from ..._engine.watch.events import ModuleRow
from ..._engine.watch.findings import Cast as Cast
from ..._engine.watch.findings import Findings
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.rule import RULES, Finding, Severity, SeverityName, select
from ..._engine.watch.selection import reaches
from ..fragment import joined
from ..result import Drawn, plain
from ..svg import Bars
from ..text import number
from .baseline import load, save
from .causes import Cause, Change, causes_of, changes_of, counted, verdict
from .cell import casts_table, findings_parts, verdict_parts
from .edits import Edit, write_edits
from .findings import Report
from .flow import flow_of
from .ranges import Ranges
from .text import Style, at_least, cast_count, cast_lines, failed, paragraphs, verdict_lines

_SEVERITIES = tuple(severity.value for severity in Severity)


@dataclasses.dataclass
class Ended:
    """What stays of an audit, or of several, when they have ended: data, and nothing that the program made."""

    findings: Findings
    operations: int = 0
    broken: list[BaseException] = dataclasses.field(default_factory=list)
    looked: dict[str, Any] | None = None  # of values
    origin_of: Callable[[Tensor], tuple[str, ...]] = lambda tensor: ()
    running = False

    @classmethod
    def of(cls, recorder: Recorder) -> "Ended":
        """What stays of one."""
        broken = [_without_frames(error) for error in recorder.broken]
        looked = None if recorder.values is None else dict(recorder.values.summary())
        return cls(recorder.findings, recorder.operations, broken, looked, recorder.lineage.alone().origin_of)

    @property
    def values(self) -> "Ended | None":
        return None if self.looked is None else self

    def summary(self) -> dict[str, Any]:
        return self.looked or {}


def _without_frames(error: BaseException) -> BaseException:
    """An exception whose traceback is text: frames hold what the program made."""
    if error.__traceback__ is not None:
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
    let_go(error)
    return error


R = TypeVar("R", default=Any, covariant=True)


class AuditReport(Drawn, Generic[R]):
    """What `audit` found. It grows while the program runs, and is complete when the audit has ended.

    Attributes:
        error (str | None): the exception that ended the program, as text, or None.
        seconds (float): how long the audit took.
        program (str | None): the script, for `python -m dtypeguard audit`.
        command (str): the command line of the process.
        date (str): when the audit began.
        began (float): the same, in seconds since 1970.
        stopped (int | None): the number of steps after which the audit ended the program, for `--steps`; else None.
        result (Any): what the function returned, for `audit(function, ...)`, with its type; None for a block.
        faults (list[BaseException]): exceptions inside the audit itself, which the program never sees; each is a bug of
            dtypeguard, and the report says how many there are.
    """

    kind = "audit"

    def __init__(
        self, recorder: Recorder | Ended, unproven: Callable[["AuditReport"], list[Edit]] | None = None
    ) -> None:
        self._recorder: Recorder | Ended = recorder
        self._unproven = unproven
        self._edits: list[Edit] | None = None
        self._proven = True  # whether what was fixed has been run
        self._least = Severity.WARNING.value  # the lowest severity that fails
        self._tests: int | None = None  # of a suite, whose modules and casts are not kept
        self._began = time.perf_counter()
        self.began: float = time.time()
        self.date: str = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        program, *arguments = sys.orig_argv
        self.command: str = shlex.join([os.path.basename(program), *arguments])
        self._modules: list[dict[str, Any]] | None = None
        self.error: str | None = None
        self.seconds: float = 0.0
        self.program: str | None = None
        self.stopped: int | None = None
        self.result: R = cast(R, None)

    def _close(self, error: BaseException | None) -> None:
        self.seconds = time.perf_counter() - self._began
        self.error = None if error is None else f"{type(error).__name__}: {error}".partition("\n")[0]
        if isinstance(self._recorder, Recorder):
            self._modules = self._recorder.guarded(_tree, self._recorder) or []
            self._recorder = Ended.of(self._recorder)

    def _become(self, other: "AuditReport") -> None:
        """Have what another report has found, beside this one's program, time and modules."""
        values = self._recorder.values
        other._recorder.looked = None if values is None else dict(values.summary())  # type: ignore[union-attr]
        self._recorder = other._recorder

    @property
    def elapsed(self) -> float:
        """Seconds since the audit began."""
        return time.perf_counter() - self._began

    @property
    def values(self) -> dict[str, Any] | None:
        """What an audit with `values=` looked at: operations that were shadowed, and by name those that were not."""
        values = self._recorder.values
        return None if values is None else {key: fact for key, fact in values.summary().items() if key != "ranges"}

    @property
    def ranges(self) -> Ranges:
        """How large the values of each module are, of an audit with `values=`; else without rows.

        It prints as a table; `to_svg` is a picture.

        >>> import torch, dtypeguard
        >>> with dtypeguard.audit(values="range") as report:
        ...     out = torch.nn.ReLU()(torch.tensor([-1.0, 70000.0]))
        >>> [(row.module, row.largest, row.zeros) for row in report.ranges]
        [('ReLU', 70000.0, 1)]
        """
        return Ranges(() if self._recorder.values is None else self._recorder.values.summary()["ranges"])

    @property
    def findings(self) -> Report:
        """One `Finding` for each rule and place, the worst first."""
        return Report(self._recorder.findings.rows())

    @property
    def casts(self) -> list[Cast]:
        """One `Cast` for each kind and place, by bytes."""
        return [cast for cast, _ in self._recorder.findings.casts()]

    @property
    def faults(self) -> list[BaseException]:
        return list(self._recorder.broken)

    def origin(self, tensor: Tensor) -> tuple[str, ...]:
        """The lines that a tensor's dtype comes from, oldest first; empty for a tensor that the audit has not seen.

        Args:
            tensor: a tensor of the program.

        Returns:
            One text for each line: the code, its place and the dtype.

        Raises:
            TypeError: `tensor` is none.

        >>> import torch, dtypeguard
        >>> with dtypeguard.audit() as report:
        ...     x = torch.ones(3, dtype=torch.float64)
        ...     y = x / 255
        >>> [line.rpartition(": ")[2] for line in report.origin(y)]
        ['float64', 'float64']
        """
        if not isinstance(tensor, Tensor):
            raise TypeError(f"origin: {summary(tensor)} is no tensor: give it one of the program's")
        return self._recorder.origin_of(tensor)

    @explained
    def assert_clean(
        self,
        ignore: Iterable[str] | str = (),
        baseline: str | os.PathLike[str] | None = None,
        fail_on: SeverityName | Literal["never"] = "warning",
    ) -> None:
        """Raise AssertionError if there is a finding of severity warning or error.

        Args:
            ignore: rules to leave out, by id, name or family.
            baseline: a file that `save_baseline` wrote. Its findings are ignored.
            fail_on: the lowest severity that fails; "never" for none.

        Raises:
            AssertionError: with the findings.
            RuntimeError: if the audit is still running.
            ValueError: for an unknown rule or severity, or a file that is not a baseline.
            FileNotFoundError: if the file does not exist.

        >>> import torch, dtypeguard
        >>> with dtypeguard.audit() as report:
        ...     total = torch.ones(3) + torch.ones(3)
        >>> report.assert_clean()
        """
        __tracebackhide__ = True
        self._over("call assert_clean()")
        self._judge(ignore, baseline, fail_on)

    def _over(self, what: str) -> None:
        """What is harmless, and what is not, is known when the audit has ended."""
        __tracebackhide__ = True
        if self._recorder.running:
            raise RuntimeError(f"the audit is still running: {what} after the block")

    def _judge(self, ignore: Iterable[str] | str, baseline: str | os.PathLike[str] | None, fail_on: str) -> None:
        __tracebackhide__ = True
        off = select(ignore)
        least = one_of("fail_on", fail_on, (*_SEVERITIES, "never"))
        known = None if baseline is None else load(baseline)
        bad = [f for f in self.findings if least != "never" and reaches(f.severity, least) and f.rule not in off]
        if known is not None:
            bad = known.new(bad)
        if bad:
            raise AssertionError(f"the audit found {counted(causes_of(bad))}\n{Report(bad)}")

    # ------------------------------------------------------------ as edits

    @property
    def edits(self) -> list[Edit]:
        """One `Edit` for each change of the program that removes findings, the safe ones first.

        Here they are best guesses: `edit.proven` is False, as nobody ran the program with them. The commands
        `python -m dtypeguard audit --diff` and `--fix` run it.

        Raises:
            RuntimeError: if the audit is still running.
            ImportError: without libcst (`pip install 'dtypeguard[fix]'`).
        """
        self._over("read edits")
        if self._edits is None:
            self._edits = [] if self._unproven is None else self._unproven(self)
        return self._edits

    def apply(self, unsafe: bool = False) -> list[str]:
        """Write the edits that are safe into the files of the program.

        Args:
            unsafe: write those too that change numbers or memory on purpose.

        Returns:
            The files that changed.

        Raises:
            TypeError: `unsafe` is neither True nor False.
            EditError: a file has changed since the program ran, or is of an installed package; nothing is written.
            OSError: a file cannot be written.
            RuntimeError, ImportError: as `edits`.
        """
        switch("unsafe", unsafe)
        chosen = [edit for edit in self.edits if (edit.safe or unsafe) and not edit.installed]
        files = write_edits(chosen)
        self._edits = [edit for edit in self.edits if edit not in chosen]
        return files

    def save_baseline(self, path: str | os.PathLike[str]) -> None:
        """Write the findings to a file, so that `assert_clean(baseline=path)` fails only for new ones.

        Args:
            path: the path of the file, which is JSON.

        Raises:
            RuntimeError: if the audit is still running.
            OSError: the file cannot be written.
        """
        self._over("call save_baseline()")
        save(self.findings, path)

    # ------------------------------------------------------------ as data

    def _data(self) -> dict[str, Any]:
        """`causes` and `edits` name findings by number."""
        rows = self._recorder.findings.rows()
        found = [{**plain(finding), **_facts(RULES[finding.rule], "name", "docs")} for finding in rows]
        causes = causes_of(rows)
        changes = changes_of(causes)
        numbers = {id(finding): count for count, finding in enumerate(rows)}
        places = ("file", "line", "function", "source")
        casts = [{**plain(cast), **_facts(site, *places)} for cast, site in self._recorder.findings.casts()]
        ids = sorted({row["rule"] for row in found})
        diffs = [] if self._edits is None else [edit.data(rows) for edit in self._edits]
        return {
            "program": self.program,
            "command": self.command,
            "date": self.date,
            "verdict": self._verdict(changes, causes),
            "error": self.error,
            "stopped": self.stopped,
            "seconds": round(self.seconds, 3),
            "operations": self._recorder.operations,
            "tests": self._tests,
            "values": self.values,
            "ranges": self.ranges.data(),
            "edits": [
                _facts(change, "place", "fix", "removes") | {"causes": [causes.index(one) for one in change.causes]}
                for change in changes
            ],
            "causes": [
                _facts(cause, "rule", "severity", "title", "count", "where", "seen")
                | {"findings": [numbers[id(finding)] for finding in cause.findings]}
                for cause in causes
            ],
            "diffs": diffs,
            "findings": found,
            "casts": casts,
            "faults": [f"{type(error).__name__}: {error}" for error in self.faults],
            "comments": [{"file": file, "line": line, "says": says} for file, line, says in self._slips()],
            "modules": _tree(self._recorder) if isinstance(self._recorder, Recorder) else self._modules,
            "rules": {key: _facts(RULES[key], "name", "why", "docs") for key in ids},
            "severities": {s.value: sum(row["severity"] == s.value for row in found) for s in reversed(Severity)},
        }

    def _picture(self) -> Bars:
        return flow_of(self.to_dict())

    def _page(self) -> str:
        from .html import render

        return render(self.to_dict())

    def _cell(self) -> tuple[Any, ...]:
        causes = causes_of(self.findings)
        changes = changes_of(causes)
        said, table = verdict_parts(self._verdict(changes, causes), changes)
        title = joined(self.program or "audit", "still running" if self._recorder.running else said)
        return findings_parts(title, causes, table, casts_table(self.casts), *self._remarks(Style(1000)))

    # ------------------------------------------------------------ as text

    def __str__(self) -> str:
        return self._text(Style.of())

    def show(self, file: TextIO | None = None) -> None:
        """Print the report, in colours if the file is a terminal.

        Args:
            file: where to print it; standard output by default.

        Raises:
            TypeError: `file` is no open file.
        """
        if file is not None and not hasattr(file, "write"):
            raise TypeError(f"show: file={file!r} is no open file: pass sys.stderr, for example")
        file = file or sys.stdout
        print(self._text(Style.of(file)), file=file)

    def __repr__(self) -> str:
        return f"<{self._summary(causes_of(self.findings))}>"

    def _summary(self, causes: Sequence[Cause], hidden: Sequence[Cause] = (), fixed: Sequence[Cause] = ()) -> str:
        """How much there is, in a line; `hidden` causes are known, or of no interest."""
        what = counted(causes).replace(" and ", ", ") or self._nothing(hidden, fixed)
        rest = f"; {counted(fixed)} {'fixed' if self._proven else 'edited, which nobody has run'}" if fixed else ""
        rest += f"; {counted(hidden)} not shown" if hidden and (causes or fixed) else ""
        about = cast_count(self.casts) if self._tests is None else number(self._tests, "test")
        so_far = " so far, it is still running" if self._recorder.running else ""
        ended = "" if self.stopped is None else f"; the program was ended after {number(self.stopped, 'step')}"
        return f"audit report: {what}{rest}; {about}{ended}{so_far}"

    def _verdict(self, changes: list[Change], causes: Sequence[Cause]) -> str:
        if not causes and not self._recorder.operations:
            return self._nothing()
        said = verdict(changes, causes, self._least)
        if self.error is None:
            return said
        ended = self.error.partition(":")[0]
        return re.sub("^Clean", f"No warning until {ended} ended the program", said)

    def _nothing(self, hidden: Sequence[Cause] = (), fixed: Sequence[Cause | Finding] = ()) -> str:
        """What is said where no cause is shown."""
        if fixed:
            left = "no warning is left" if hidden else "nothing more found"
            return left if self._proven else "nothing else found"
        if hidden:
            return f"{counted(hidden)} not shown"
        if self._recorder.operations:
            least = self._recorder.findings.least
            nothing = "nothing found" if least == "info" else f"nothing of severity {at_least(least)} found"
            return f"{nothing} in {self._steps()}" if "every" in (self.values or {}) else nothing
        early = self.error is not None
        return "the program ended before any operation of PyTorch" if early else "no operation of PyTorch was seen"

    def _text(
        self, style: Style, findings: Sequence[Finding] | None = None, casts: bool = True, fixed: Sequence[Finding] = ()
    ) -> str:
        """The report, or these of its findings."""
        causes = causes_of(self.findings if findings is None else findings)
        told = {(f.rule, f.file, f.line) for f in (*(findings or ()), *fixed)}
        others = [] if findings is None else [f for f in self.findings if (f.rule, f.file, f.line) not in told]
        hidden = causes_of(others)
        changes = changes_of(causes)
        over = not self._recorder.running
        said = self._verdict(changes, causes)
        lines = [*verdict_lines(said, changes, style), ""] if causes and over else []
        mere = hidden and not fixed and not changes_of(hidden)
        nothing = f"{self._verdict([], hidden)} not shown" if mere else self._nothing(hidden, fixed)
        lines += [*paragraphs(causes, style), ""] if causes else [nothing, ""]
        if casts and (table := [*cast_lines(self.casts, style)]):
            lines += [*table, ""]
        return "\n".join([*lines, *self._remarks(style), self._summary(causes, hidden, causes_of(fixed))])

    def _remarks(self, style: Style) -> list[str]:
        """Where the audit itself failed, what is misspelt in comments, and what was looked at of values."""
        slips = [f"{shown(file)}:{line}: in a comment, {says}" for file, line, says in self._slips()]
        said = [*failed(self.faults), *slips]
        return [line for one in said for line in style.fold(one, rest="        ")] + self._shadowed(style)

    def _slips(self) -> list[tuple[str, int, str]]:
        """What is misspelt in comments: file, line and text."""
        return self._recorder.findings.slips()

    def _steps(self) -> str:
        """`3 of 5 steps`, where not each is looked at."""
        values = self.values or {}
        return f"{values['looked_at']:,} of {number(values['steps'], 'step')}"

    def _shadowed(self, style: Style) -> list[str]:
        """What was looked at of values, in a sentence."""
        if (values := self.values) is None:
            return []
        steps = f"; only {self._steps()} looked at" if "every" in values else ""
        if values["how"] != "shadow":
            return [f"values: what is not finite, in each operation{steps}"]
        missing = ", ".join(f"{name} ({count})" for name, count in values["not_shadowed"].items())
        over = f"; the shadow ended: {values['over']}" if values["over"] else ""
        said = (
            f"{number(values['shadowed'], 'operation')} in a wider dtype{f', not: {missing}' if missing else ', all'}"
        )
        if not values["shadowed"] and not missing:
            said = "no operation on floats that have a wider dtype"
        said = f"values: {said}{steps}{over}"
        return [*style.fold(said, rest="        ")]


# ---------------------------------------------------------------- rows


def _facts(thing: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}


def _tree(recorder: Recorder) -> list[dict[str, Any]]:
    """The modules that were called, and what else is in them and alive; parents before children."""
    rows, called = {}, recorder.calls
    roots = {path.partition(".")[0] for path in called}
    for path, module in recorder.modules():
        if path.partition(".")[0] in roots:
            rows[path] = recorder.guarded(ModuleRow.of, path, module)
    for path, row in called.items():
        rows[path] = dataclasses.replace(row, parameters=rows[path].parameters if rows.get(path) else row.parameters)
    return [_module(row, rows) for row in rows.values() if row is not None]


def _module(row: ModuleRow, rows: dict[str, Any]) -> dict[str, Any]:
    parent = row.path.rpartition(".")[0]
    while parent and parent not in rows:
        parent = parent.rpartition(".")[0]
    return {
        "path": row.path, "class": row.name, "parent": parent or None, "calls": row.calls,
        "parameters": row.parameters, "inputs": row.inputs, "outputs": row.outputs,
    }  # fmt: skip


AuditReport.__module__ = "dtypeguard.results"
