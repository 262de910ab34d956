"""The pytest plugin's second half: the fixture `dtype_audit`.

Neither torch nor dtypeguard is imported before a test asks for the fixture.
"""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .pytest import marked, plainly
from .pytest_suite import brief, suite_of

if TYPE_CHECKING:
    from dtypeguard._engine.watch.rule import Finding
    from dtypeguard._tools.audit import AuditReport

_MARKER = (
    "dtype_audit(select=None, ignore=(), values=None, every=None, source=None, omit=None, baseline=None, "
    "fail_on='warning'): audit the test, with these options"
)
_OF_AUDIT = ("select", "ignore", "values", "every", "source", "omit")
_OPTIONS = (*_OF_AUDIT, "baseline", "fail_on")
_INI, _WRITE, _SENT = "dtypeguard_baseline", "--dtypeguard-write-baseline", "dtypeguard_baseline"

Rows = collections.Counter[tuple[str, ...]]


@dataclasses.dataclass
class _Watch:
    """The audit of one test."""

    audit: contextlib.AbstractContextManager["AuditReport"]
    report: "AuditReport"
    options: dict[str, Any]  # of the marker
    baseline: Path | None
    fail_on: str
    writes: bool  # a baseline, so nothing fails
    asked: list[functools.partial[None]] | None = None  # calls of `assert_clean` that passed, once there was one


_watch = pytest.StashKey[_Watch]()
_running = pytest.StashKey[contextlib.ExitStack]()
_found = pytest.StashKey[Rows]()
_audited = pytest.StashKey[bool]()  # whether a test was audited


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(_INI, "a file with the known findings of dtype_audit, relative to the configuration file", default="")
    parser.getgroup("dtypeguard").addoption(
        _WRITE, action="store_true", help=f"write what dtype_audit finds to the file in {_INI}, and do not fail on it"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    config.stash[_found], config.stash[_audited] = collections.Counter(), False
    if config.getoption(_WRITE) and _baseline(config) is None:
        raise pytest.UsageError(f"{_WRITE} needs {_INI} = PATH in pytest's configuration")
    path = _baseline(config)
    if path is not None and config.getoption("dtypeguard_audit", None) is not None and not config.getoption(_WRITE):
        from dtypeguard._show.report.baseline import load

        try:
            load(path, _WRITE)
        except (OSError, ValueError) as error:
            raise pytest.UsageError(str(error)) from None


@pytest.fixture
def dtype_audit(request: pytest.FixtureRequest) -> Generator["AuditReport"]:
    """Audit the body of the test, and fail the test if there is a finding of severity warning or error.

    The value is the report, which grows while the test runs. If the test calls `dtype_audit.assert_clean(...)`, these
    calls decide instead; each is repeated at the end of the test. Setup and teardown of fixtures are not audited.

    Returns:
        The report, which is complete after the test.

    Example:
        # test_clean.py
        import torch


        def test_a_step_has_no_findings(dtype_audit):
            layer = torch.nn.Linear(8, 2)
            layer(torch.randn(4, 8)).square().mean().backward()
    """
    # What can be wrong with rules, pyproject.toml or a baseline.
    if _watch in request.node.stash:  # by a marker, and it runs
        yield request.node.stash[_watch].report
        return
    watch = _begin_watch(request.node)
    running = request.node.stash.get(_running, None)
    if running is not None:  # by `getfixturevalue`, in the body
        running.enter_context(watch.audit)
    yield watch.report


def _begin_watch(item: pytest.Item) -> _Watch:
    watch = plainly("dtype_audit", functools.partial(_begin, item), ValueError, TypeError, OSError)
    item.stash[_watch] = watch
    return watch


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Read the marker when all fixtures are there: a conftest, another plugin or a fixture may have added it."""
    result = yield
    asked = item.get_closest_marker("dtype_audit") or suite_of in item.config.stash
    if asked and _watch not in item.stash:
        _begin_watch(item)
    _check_marker(item)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        if _watch in item.stash:
            del item.stash[_watch]  # items live as long as the session


def _check_marker(item: pytest.Item) -> None:
    """Fail a test whose marker says by now what its audit was not told."""
    watch = item.stash.get(_watch, None)
    if watch is None:
        late = item.get_closest_marker("dtype_audit") is not None
    else:
        late = marked(item, "dtype_audit", _MARKER, _OPTIONS) != watch.options
    if late:
        when = "while the test runs" if watch is None else "after the fixture dtype_audit has begun"
        why = f"dtype_audit: a marker that is added {when} is too late: add it in pytest_collection_modifyitems"
        pytest.fail(f"{why}, or as a decorator", pytrace=False)


def _begin(item: pytest.Item) -> _Watch:
    import dtypeguard
    from dtypeguard._show.report.baseline import load

    options = marked(item, "dtype_audit", _MARKER, _OPTIONS)
    default = _baseline(item.config)
    baseline = options.get("baseline", default)
    baseline = None if baseline is None else item.config.rootpath / baseline
    item.config.stash[_audited] = True
    write = bool(item.config.getoption(_WRITE))
    if baseline is not None and not write:
        load(baseline, _WRITE)  # what is wrong with it is said before the test runs
    suite = item.config.stash.get(suite_of, None)
    of_audit = {} if suite is None else {**suite.options}
    of_audit |= {name: options[name] for name in _OF_AUDIT if name in options}
    audit = dtypeguard.audit(**of_audit)
    least = "warning" if suite is None else suite.fail_on
    watch = _Watch(audit, audit.report, options, baseline, options.get("fail_on", least), write)
    _listen(watch)
    return watch


def _listen(watch: _Watch) -> None:
    """Remember how the test calls `assert_clean`, and let the configured baseline count there too."""
    judge = watch.report._judge
    least = "warning" if watch.fail_on == "never" else watch.fail_on

    @functools.wraps(watch.report.assert_clean)
    def assert_clean(ignore: Any = (), baseline: Any = watch.baseline, fail_on: Any = least) -> None:
        __tracebackhide__ = True
        watch.asked = watch.asked or []
        if watch.writes:
            return
        judge(ignore, baseline, fail_on)
        watch.asked.append(functools.partial(judge, ignore, baseline, fail_on))

    watch.report.assert_clean = assert_clean  # type: ignore[method-assign]  # of this one report


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        with contextlib.ExitStack() as running:
            item.stash[_running] = running
            if _watch in item.stash:
                running.enter_context(item.stash[_watch].audit)
            result = yield
    except BaseException:
        if _watch in item.stash:
            _add_section(item, item.stash[_watch])
            _tell(item, item.stash[_watch])
        raise
    finally:
        del item.stash[_running]
    _check_marker(item)
    if _watch in item.stash:
        _assert_clean(item, item.stash[_watch])
    return result


def _tell(item: pytest.Item, watch: _Watch) -> "list[Finding] | None":
    """Tell the audit of the suite, if there is one, what is new."""
    suite = item.config.stash.get(suite_of, None)
    if suite is None:
        return None
    from dtypeguard._show.report.baseline import load

    found = list(watch.report.findings)
    new = found if watch.writes or watch.baseline is None else load(watch.baseline).new(found)
    suite.add(item, watch.report, new)
    return new


def _assert_clean(item: pytest.Item, watch: _Watch) -> None:
    from dtypeguard._engine.watch.selection import reaches

    if watch.writes:
        from dtypeguard._show.report.baseline import rows_of

        _merge(item.config, rows_of(watch.report.findings, _baseline(item.config) or ""))
    told = _tell(item, watch)
    if watch.writes or watch.fail_on == "never":
        return
    if told is not None and watch.asked is None:
        if bad := [finding for finding in told if reaches(finding.severity, watch.fail_on)]:
            pytest.fail(brief(bad), pytrace=False)
        return
    for asked in [watch.report.assert_clean] if watch.asked is None else watch.asked:
        plainly("dtype_audit", asked, AssertionError)


def _add_section(item: pytest.Item, watch: _Watch) -> None:
    """Beside a failure of the test's own, what was found."""
    bad = [finding for finding in watch.report.findings if finding.severity != "info"]
    if bad:
        item.add_report_section("call", "dtype_audit", str(type(watch.report.findings)(bad)))


# --- the baseline -------------------------------------------------------------------------------------------------


def _baseline(config: pytest.Config) -> Path | None:
    path = config.getini(_INI)
    return (config.inipath.parent if config.inipath else config.rootpath) / path if path else None


def _merge(config: pytest.Config, rows: Iterable[Iterable[str]]) -> None:
    """Tests are compared one by one, so of what several find it is enough to know the most."""
    config.stash[_found] |= collections.Counter(map(tuple, rows))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended."""
    audited, rows = getattr(node, "workeroutput", {}).get(_SENT, (False, ()))
    node.config.stash[_audited] |= audited
    _merge(node.config, rows)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    path = _baseline(config)
    if not config.getoption(_WRITE) or path is None:
        return
    rows = sorted(config.stash[_found].elements())
    to_controller = getattr(config, "workeroutput", None)
    if to_controller is not None:
        to_controller[_SENT] = config.stash[_audited], [list(row) for row in rows]
    elif not config.stash[_audited]:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
    else:
        from dtypeguard._show.report.baseline import write_rows

        write_rows(rows, path)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption(_WRITE) and not config.stash[_audited]:
        said = f"no test was audited, {_baseline(config)} stays as it is: {_WRITE} goes with --dtypeguard-audit"
        terminalreporter.write_line(f"dtypeguard: {said}, or with tests that take dtype_audit", red=True)
    elif config.getoption(_WRITE):
        from dtypeguard._show.text import number

        count = number(config.stash[_found].total(), "finding")
        terminalreporter.write_line(f"dtypeguard: wrote {count} to {_baseline(config)}")
