"""What an audit found: to print, to compare, to keep."""

import dataclasses
import importlib.util
import io
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._base.dtypes import name_of
from .._watch.events import ModuleRow
from .._watch.findings import Cast as Cast
from .._watch.recorder import Recorder
from .._watch.rule import RULES, Report, Severity, select
from .._watch.sites import Site
from .._watch.text import human
from .baseline import load, save

_SHOWN = 20  # casts of a printed report
_NARROW = 100  # columns; below there is no room for a table
_BAD = frozenset([Severity.WARNING.value, Severity.ERROR.value])


class AuditReport:
    """What `audit` found. It grows while the program runs, and is complete when the audit has ended.

    Attributes:
        error: the exception that ended the program, as text, or None.
        seconds: how long the audit took.
        program: the script, for `python -m dtypeguard audit`.
        result: what the function returned, for `audit(function, ...)`.
        faults: exceptions inside the audit itself, which the program never sees; each is a bug of dtypeguard.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._began = time.perf_counter()
        self._modules: list[dict[str, Any]] | None = None
        self.error: str | None = None
        self.seconds = 0.0
        self.program: str | None = None
        self.result: Any = None

    def _close(self, error: BaseException | None) -> None:
        self.seconds = time.perf_counter() - self._began
        self.error = None if error is None else f"{type(error).__name__}: {error}".partition("\n")[0]
        self._modules = self._recorder.guarded(_tree, self._recorder) or []

    @property
    def elapsed(self) -> float:
        """Seconds since the audit began."""
        return time.perf_counter() - self._began

    @property
    def values(self) -> dict[str, Any] | None:
        """What an audit with `values=` looked at: operations that were shadowed, and by name those that were not."""
        values = self._recorder.values
        return None if values is None else dict(values.summary())

    @property
    def findings(self) -> Report:
        """One `Finding` for each rule and place, the worst first."""
        return Report(finding for finding, _ in self._recorder.findings.rows())

    @property
    def casts(self) -> list[Cast]:
        """One `Cast` for each kind and place, by bytes."""
        return [cast for cast, _ in self._recorder.findings.casts()]

    @property
    def faults(self) -> list[BaseException]:
        return list(self._recorder.broken)

    def origin(self, tensor: Tensor) -> tuple[str, ...]:
        """The lines that a tensor's dtype comes from, oldest first; empty for a tensor that the audit has not seen.

        >>> import torch, dtypeguard
        >>> with dtypeguard.audit() as report:
        ...     x = torch.ones(3, dtype=torch.float64)
        ...     y = x / 255
        >>> [line.rpartition(": ")[2] for line in report.origin(y)]
        ['float64', 'float64']
        """
        return self._recorder.origin_of(tensor)

    def assert_clean(self, ignore: Iterable[str] | str = (), baseline: str | os.PathLike[str] | None = None) -> None:
        """Raise AssertionError if there is a finding of severity warning or error.

        Args:
            ignore: rules to leave out, by id, name or family.
            baseline: a file that `save_baseline` wrote. Its findings are ignored.

        Raises:
            AssertionError: with the findings.
            RuntimeError: if the audit is still running.
            ValueError: for an unknown rule, or a file that is not a baseline.
            FileNotFoundError: if the file does not exist.

        >>> import torch, dtypeguard
        >>> with dtypeguard.audit() as report:
        ...     total = torch.ones(3) + torch.ones(3)
        >>> report.assert_clean()
        """
        __tracebackhide__ = True
        self._over("assert_clean")
        self._judge(ignore, baseline)

    def _over(self, name: str) -> None:
        """What is harmless, and what is not, is known when the audit has ended."""
        __tracebackhide__ = True
        if self._recorder.running:
            raise RuntimeError(f"the audit is still running: call {name}() after the block")

    def _judge(self, ignore: Iterable[str] | str = (), baseline: str | os.PathLike[str] | None = None) -> None:
        __tracebackhide__ = True
        off = select(ignore)
        known = None if baseline is None else load(baseline)
        bad = [f for f in self.findings if f.severity in _BAD and f.rule not in off]
        if known is not None:
            bad = known.new(bad)
        if bad:
            raise AssertionError(f"the audit found {_number(len(bad), 'fault')}\n{Report(bad)}")

    def save_baseline(self, path: str | os.PathLike[str]) -> None:
        """Write the findings to a file, so that `assert_clean(baseline=path)` fails only for new ones."""
        self._over("save_baseline")
        save(self.findings, path)

    # ------------------------------------------------------------ as data

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data. Dtypes are names (`bfloat16`)."""
        found = [
            {**_fields(finding), **_place(site), "name": RULES[finding.rule].name, "docs": RULES[finding.rule].docs}
            for finding, site in self._recorder.findings.rows()
        ]
        casts = [{**_fields(cast), **_place(site)} for cast, site in self._recorder.findings.casts()]
        ids = sorted({row["rule"] for row in found})
        return {
            "schema": 1,
            "dtypeguard": sys.modules["dtypeguard"].__dict__["__version__"],
            "torch": torch.__version__,
            "program": self.program,
            "error": self.error,
            "seconds": round(self.seconds, 3),
            "operations": self._recorder.operations,
            "values": self.values,
            "findings": found,
            "casts": casts,
            "modules": _tree(self._recorder) if self._modules is None else self._modules,
            "rules": {key: {"name": RULES[key].name, "why": RULES[key].why, "docs": RULES[key].docs} for key in ids},
            "severities": {s.value: sum(row["severity"] == s.value for row in found) for s in reversed(Severity)},
        }

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The report as JSON. It is also written to `path`, if given."""
        text = json.dumps(self.to_dict(), indent=1)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a self-contained HTML page: modules, casts and findings."""
        from .html import render

        Path(path).write_text(render(self.to_dict()), encoding="utf-8")

    # ------------------------------------------------------------ as text

    def __str__(self) -> str:
        has_rich = importlib.util.find_spec("rich") is not None
        text = self._rich() if has_rich and _width() >= _NARROW else self._text()
        return text.rstrip()

    def __repr__(self) -> str:
        counts = Counter(finding.severity for finding in self.findings)
        what = ", ".join(_number(counts[s.value], s.value) for s in reversed(Severity) if counts[s.value])
        so_far = " so far, it is still running" if self._recorder.running else ""
        return f"<audit report: {what or 'nothing found'}; {_number(len(self.casts), 'cast')}{so_far}>"

    def _text(self) -> str:
        findings, casts = self.findings, self.casts
        parts = [str(findings)]
        if casts:
            parts.append(f"\ncasts, by bytes ({_number(len(casts), 'place')})")
            width = max(len(_arrow(cast)) for cast in casts[:_SHOWN])
            parts += [
                f"  {human(cast.bytes):>9} {cast.count:>6}x  {cast.kind:<9} {_arrow(cast):<{width}}  "
                f"{cast.site}{f'  in {cast.module_path}' if cast.module_path else ''}"
                for cast in casts[:_SHOWN]
            ]
            if len(casts) > _SHOWN:
                parts.append(f"  ... {len(casts) - _SHOWN} more")
        return "\n".join([*parts, "", *self._shadowed(), repr(self)[1:-1]])

    def _shadowed(self) -> list[str]:
        """What was looked at of values, in a sentence."""
        if (values := self.values) is None:
            return []
        if values["how"] != "shadow":
            return ["values: what is not finite, in each operation"]
        missing = ", ".join(f"{name} ({count})" for name, count in values["not_shadowed"].items())
        over = f"; the shadow ended: {values['over']}" if values["over"] else ""
        rest = (
            f", not: {missing}" if missing else ", all" if values["shadowed"] else "; of float64 there is no wider one"
        )
        return [f"values: {_number(values['shadowed'], 'operation')} in a wider dtype{rest}{over}"]

    def _rich(self) -> str:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        plain: dict[str, Any] = {"highlight": False, "color_system": None, "force_terminal": False}
        out = io.StringIO()
        console = Console(file=out, width=min(160, _width()), **plain)
        table = Table(title="findings", title_justify="left", expand=True)
        for column, wide in (("", 0), ("rule", 0), ("what, and what to write", 3), ("where", 1)):
            table.add_column(column, ratio=wide or None, overflow="fold")
        for f in self.findings:
            often = f" (x{f.count})" if f.count > 1 else ""
            chain = "".join(f"\n  {line}" for line in f.origin)
            where = "\n".join(filter(None, [f.site, f.module_path]))
            name = f"{f.rule}\n{RULES[f.rule].name}"
            table.add_row(f.severity, name, escape(f"{f.message}{often}{chain}\nfix: {f.fix}"), escape(where))
        if self.findings:
            console.print(table)
        else:
            console.print("nothing found")
        if self.casts:
            table = Table(title="casts, by bytes", title_justify="left")
            for column in ("bytes", "count", "kind", "cast", "where"):
                justify: Any = "right" if column in ("bytes", "count") else "left"
                table.add_column(column, justify=justify, overflow="fold")
            for cast in self.casts[:_SHOWN]:
                where = "  ".join(filter(None, [cast.site, cast.module_path]))
                table.add_row(human(cast.bytes), str(cast.count), cast.kind, _arrow(cast), escape(where))
            console.print(table)
            if len(self.casts) > _SHOWN:
                console.print(f"... {len(self.casts) - _SHOWN} more casts")
        for sentence in [*self._shadowed(), repr(self)[1:-1]]:
            console.print(escape(sentence))
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


# ---------------------------------------------------------------- rows


def _fields(row: Any) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in row.__slots__}
    for name, value in values.items():
        if isinstance(value, torch.dtype):
            values[name] = name_of(value)
        elif isinstance(value, tuple):
            values[name] = list(value)
    return values


def _place(site: Site) -> dict[str, Any]:
    return {"file": site.file, "line": site.line, "function": site.function, "source": site.source}


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


# ---------------------------------------------------------------- text


def _arrow(cast: Cast) -> str:
    if cast.from_dtype is cast.to_dtype:
        return f"{name_of(cast.from_dtype)} {cast.from_device} -> {cast.to_device}"
    return f"{name_of(cast.from_dtype)} -> {name_of(cast.to_dtype)}"


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 or what == 'info' else 's'}"


def _width() -> int:
    return shutil.get_terminal_size((120, 40)).columns


AuditReport.__module__ = "dtypeguard"
