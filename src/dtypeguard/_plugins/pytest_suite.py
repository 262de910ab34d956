"""The pytest plugin's audit of a whole suite: `pytest --dtypeguard-audit`.

Each test runs under an audit of its own, as with the fixture `dtype_audit`. The findings of all tests, and of all
workers of pytest-xdist, are one summary at the end: a line of the program is told once, with the tests that reach it.
"""

import argparse
import base64
import dataclasses
import os
import re
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .._core.base.pyproject import near, one_of

if TYPE_CHECKING:
    from dtypeguard._engine.watch.rule import Finding
    from dtypeguard._show.report.merged import Merged
    from dtypeguard.results import AuditReport

_AUDIT, _SOURCE, _OMIT = "--dtypeguard-audit", "--dtypeguard-audit-source", "--dtypeguard-audit-omit"
_REPORT, _FAIL = "--dtypeguard-audit-report", "--dtypeguard-audit-fail-on"
_FORMS = {_AUDIT: "operations", f"{_AUDIT}=values": "values", f"{_AUDIT}=range": "range"}
_VALUES = {"operations": None, "values": True, "range": "range"}
_SEVERITIES = ("info", "warning", "error", "never")
_FORMATS = (".html", ".json", ".sarif", ".txt")
_SENT = "dtypeguard_suite"


@dataclasses.dataclass
class Suite:
    """The audit of a suite."""

    options: dict[str, Any]  # of each test's audit
    fail_on: str  # the lowest severity that fails a test; "never" for none
    reports: list[str]  # the files to write at the end
    merged: "Merged"  # what was found so far
    lost: list[str] = dataclasses.field(default_factory=list)  # tests whose worker died

    def add(self, item: pytest.Item, report: "AuditReport", findings: "list[Finding]") -> None:
        """Keep what a test found."""
        from dtypeguard._show.report.merged import Merged

        found = Merged()
        found.add(item.nodeid, report, findings, casts=False)
        item.stash[_found] = found.packed()
        bad = [finding for finding in findings if finding.severity != "info"]
        for place in dict.fromkeys(f"{finding.rule} {_line_of(finding)}" for finding in bad):
            item.user_properties.append(("dtypeguard", place))  # JUnit's XML has it


def brief(findings: "Iterable[Finding]") -> str:
    """Why a test fails, in a few lines; the summary shows the code."""
    from dtypeguard._show.report.causes import causes_of

    return "\n".join(
        f"{cause.severity}[{cause.rule}] {_line_of(cause.first)}: {cause.first.message}"
        for cause in causes_of(findings)
    )


def _line_of(finding: "Finding") -> str:
    return (finding.site or "an unknown line").partition(", in ")[0]


suite_of = pytest.StashKey[Suite]()
_found = pytest.StashKey[bytes]()
_running: list[Suite] = []  # the last is the one whose reports come; a run may stand in a test of another


class _Form(argparse.Action):
    """One of several names of an option: if it could have a value, it would take the path behind it for that."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, _FORMS[option_string])


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Tell which values there are, before argparse reads them: it does not, of an option without a value."""
    config: Any = pluginmanager.get_plugin("pytestconfig")
    for one in () if config is None else map(str, config.invocation_params.args):
        option, _, value = one.partition("=")
        if option == _AUDIT and value and one not in _FORMS:
            values = [form for form in _FORMS.values() if form != "operations"]
            meant, legal = near(value, values), ", ".join(map(repr, values))
            raise pytest.UsageError(
                f"argument {_AUDIT}: invalid choice: {value!r}{meant} (choose from {legal}, or none)"
            )


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("dtypeguard").addoption
    says = (
        "audit every test, and print one summary; with values, each operation runs once more in a wider dtype; with "
        "range, values that are not finite are looked for"
    )
    add(*_FORMS, dest="dtypeguard_audit", nargs=0, action=_Form, help=says)
    says = (
        "report lines of these folders and packages only, with commas; what other code does, at the line that led "
        "there (elsewhere this is `source`)"
    )
    add(_SOURCE, metavar="PATHS", action="append", help=says)
    add(_OMIT, metavar="GLOBS", action="append", help="do not report lines of these files, with commas")
    says = f"the lowest severity that fails a test: {', '.join(_SEVERITIES)} (default: warning)"
    add(_FAIL, type=one_of(_SEVERITIES), metavar="SEVERITY", help=says)
    says = f"write the summary to this file, too: {', '.join(_FORMATS)}"
    add(_REPORT, metavar="PATH", action="append", default=[], help=says)


def pytest_configure(config: pytest.Config) -> None:
    asked = config.getoption("dtypeguard_audit")
    if asked is None:
        for option in (_SOURCE, _OMIT, _FAIL, _REPORT):
            if config.getoption(option):
                raise pytest.UsageError(f"{option} goes with {_AUDIT}")
        return
    from dtypeguard._engine.watch.selection import Selection
    from dtypeguard._show.report.merged import Merged

    options = {"values": _VALUES[asked], "source": _split(config, _SOURCE), "omit": _split(config, _OMIT)}
    options = {name: value for name, value in options.items() if value}
    try:
        Selection.read(source=options.get("source"), omit=options.get("omit"))
        reports = [_file(path) for path in config.getoption(_REPORT) or ()]
    except (ValueError, TypeError) as error:
        text = re.sub("^(source|omit)=", rf"{_AUDIT}-\1=", str(error))
        raise pytest.UsageError(text if text.startswith(_AUDIT) else f"{_AUDIT}: {text}") from None
    suite = config.stash[suite_of] = Suite(options, config.getoption(_FAIL) or "warning", reports, Merged())
    if not hasattr(config, "workerinput"):  # a worker's reports go to where all come together
        _running.append(suite)
        config.add_cleanup(lambda: _running.remove(suite))


def _split(config: pytest.Config, option: str) -> list[str]:
    given = config.getoption(option) or ()
    return [part.strip() for text in given for part in text.split(",") if part.strip()]


def _file(path: str) -> str:
    from dtypeguard._show.files import writable

    if Path(path).suffix not in _FORMATS:
        raise ValueError(f"{_REPORT} {path}: the name must end with one of {', '.join(_FORMATS)}")
    return writable(path)


def pytest_report_header(config: pytest.Config) -> str | None:
    suite = config.stash.get(suite_of, None)
    if suite is None:
        return None
    said = {None: "operations", True: "values", "range": "range"}[suite.options.get("values")]
    only = ", ".join(suite.options.get("source", ()))
    return f"dtypeguard audit: {said} of every test" + (f", lines of {only} only" if only else "")


# --- from tests to the summary ------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """What a test found goes with its report, so that it comes from a worker even if that dies later."""
    report = yield
    found = item.stash.get(_found, None)
    if found is not None and call.when == "call":
        setattr(report, _SENT, base64.b64encode(found).decode())
        del item.stash[_found]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: Any) -> None:
    suite = _running[-1] if _running else None
    if suite is None:
        return
    found = report.__dict__.pop(_SENT, None)
    if found is not None:
        suite.merged.unpack(base64.b64decode(found))
    elif report.when not in ("setup", "call", "teardown"):  # pytest-xdist's, of a worker that died
        suite.lost.append(report.nodeid)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    suite = config.stash.get(suite_of, None)
    if suite is None:
        return
    from dtypeguard._show.report.causes import causes_of, counted
    from dtypeguard._show.report.text import Style, paragraphs

    report = suite.merged.report()
    report._tests, report._least = len(suite.merged.names), suite.fail_on
    bad = [finding for finding in report.findings if finding.severity != "info"]
    mere = counted(causes_of(finding for finding in report.findings if finding.severity == "info"))
    shown = causes_of(report.findings if config.get_verbosity() > 0 else bad)
    title = f"dtypeguard audit: {_summary(bad, len(suite.merged.names), config.getini('dtypeguard_baseline'))}"
    terminalreporter.write_sep("=", title, yellow=bool(bad), green=not bad)
    style = Style(min(terminalreporter._tw.fullwidth, Style.of().width), terminalreporter._tw.hasmarkup)
    for line in paragraphs(shown, style):
        terminalreporter.write_line(line)
    if mere and config.get_verbosity() <= 0:
        terminalreporter.write_line(f"{mere} not shown; -v shows all")
    for lost in suite.lost:
        terminalreporter.write_line(f"not audited to its end, as its worker died: {lost}", yellow=True)
    for path in suite.reports:
        try:
            _write(report, path)
        except OSError as error:
            terminalreporter.write_line(str(error), red=True)
        else:
            terminalreporter.write_line(f"written: {os.path.relpath(path, config.invocation_params.dir)}")


def _summary(bad: "list[Finding]", audited: int, baseline: str) -> str:
    """`12 of 340 tests, 3 lines`, of what the baseline does not know."""
    from dtypeguard._show.text import number

    if not bad:
        what = f"nothing that {os.path.basename(baseline)} does not know" if baseline else "nothing found"
        return f"{what} in {number(audited, 'test')}"
    tests = {name for finding in bad for name in finding.seen_in}
    lines = {(finding.edit.file, finding.edit.line) if finding.edit else finding.site for finding in bad}
    return f"{len(tests):,} of {number(audited, 'test')}, {number(len(lines), 'line')}"


def _write(report: "AuditReport", path: str) -> None:
    from dtypeguard._show.files import write
    from dtypeguard._show.report.causes import causes_of
    from dtypeguard._show.report.formats import sarif

    match Path(path).suffix:
        case ".html":
            report.to_html(path)
        case ".json":
            report.to_json(path)
        case ".sarif":
            write(path, sarif(causes_of(report.findings)) + "\n")
        case _:
            write(path, f"{report}\n")
