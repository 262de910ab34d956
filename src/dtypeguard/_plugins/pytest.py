"""The pytest plugin: the mode in tests, packages to enforce, a summary of repairs. `pytest_audit` has more.

pytest loads it in every run: neither torch nor more of dtypeguard is imported before a
test does so, or packages are to be enforced. What dtypeguard must know then it finds in `told`.
"""

import collections
import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from .._core.base import pyproject

if TYPE_CHECKING:
    from dtypeguard.results import CastRecord, ImportHook

pytest_plugins = [f"dtypeguard._plugins.pytest_{name}" for name in ("suite", "audit", "state")]

_MODES = pyproject.LEGAL["mode"]
_LEGAL = {"mode": (*_MODES, *(f"{mode}:all" for mode in _MODES), "config"), "casting": pyproject.LEGAL["casting"]}
_MARKER = (
    "dtypeguard(mode=None, casting=None): the mode of dtypeguard in the test, its setup and its teardown: mode as for "
    f"--dtypeguard, casting one of {', '.join(_LEGAL['casting'])}. The closest marker wins."
)
_WHY = "strict, because pytest runs it: --dtypeguard=lenient repairs, --dtypeguard=config keeps the program's mode"
_SENT = "dtypeguard_repairs"
_SHOWN = 20  # repairs, without -v

T = TypeVar("T")
Row = tuple[str, ...]
Settings = dict[str, Any]  # mode, casting, under: as `dtypeguard.set_mode` takes them

told: Settings = {}  # what is in force; dtypeguard reads it at its import


@dataclasses.dataclass
class _Run:
    """A run of pytest, and the test that runs."""

    mode: str  # as users write it
    asked: bool  # for it
    switched_off: bool  # by an operator, so nothing counts against it
    outside: Settings  # what is in force without the test
    hook: "ImportHook | None" = None  # of the packages to enforce
    marks: Settings = dataclasses.field(default_factory=dict)  # what its markers say
    begun: Any = None  # where the registry of repairs stood
    seen: Any = None  # how far it is counted
    repairs: collections.Counter[Row] = dataclasses.field(default_factory=collections.Counter)
    first: dict[Row, str] = dataclasses.field(default_factory=dict)  # which test made a repair first


_run = pytest.StashKey[_Run]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("dtypeguard_mode", "the default of --dtypeguard", default="")
    parser.addini("dtypeguard_casting", f"the casts of lenient mode: {', '.join(_LEGAL['casting'])}", default="")
    parser.addini("dtypeguard_packages", "the packages of --dtypeguard-packages", type="linelist", default=[])
    group = parser.getgroup("dtypeguard")
    group.addoption(
        "--dtypeguard-packages",
        metavar="PACKAGES",
        help="enforce the annotated functions and dataclasses of these packages (names with commas), as "
        "dtypeguard.install_import_hook does",
    )
    group.addoption(
        "--dtypeguard",
        type=pyproject.one_of(_LEGAL["mode"]),
        metavar="MODE",
        help="what a violation does: strict (the default), lenient, warn or off, for contracts written below the "
        "rootdir; strict:all, lenient:all, ...: for installed packages too; config: the mode that the program sets",
    )


@pytest.hookimpl(tryfirst=True)  # a conftest may import dtypeguard, and set a mode
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    told = early_config.known_args_namespace
    _begin(early_config, told.dtypeguard, told.dtypeguard_packages)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    _begin(config, config.getoption("dtypeguard"), config.getoption("dtypeguard_packages"))


def _begin(config: pytest.Config, option: str | None, packages: str | None) -> None:
    """Put in force what the command line, pytest's configuration or the environment say."""
    global told
    if _run in config.stash:
        return
    try:
        environment = pyproject.environment()
        asked = option or config.getini("dtypeguard_mode") or ("config" if environment else "")
        project = _project_mode(config)  # also where another counts before it, as it says what is wrong with the table
        asked = asked or project
        mode = asked or "strict"
        settings = _settings(config, "dtypeguard_", mode=mode, casting=config.getini("dtypeguard_casting") or None)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if mode == "config":  # what the program has set stays
        del settings["mode"], settings["under"]
    config.add_cleanup(functools.partial(_apply, _current()))  # a run may stand in a test of another
    told = {}
    _apply({**_current(), **settings})
    off = mode == "off:all" or (mode == "config" and environment == "off")
    config.stash[_run] = run = _Run(mode, bool(asked), off, _current())
    named = [packages] if packages is not None else config.getini("dtypeguard_packages")
    names = [name.strip() for line in named for name in line.split(",") if name.strip()]
    if names and not off:
        run.hook = _hook(names)
        config.add_cleanup(run.hook._take_off)


def _project_mode(config: pytest.Config) -> str:
    """The mode in `[tool.dtypeguard]` of pyproject.toml: somebody chose it, unlike our default."""
    table = pyproject.find(config.rootpath)[1]
    if not table.keys().isdisjoint(pyproject.COMMANDS):  # what is wrong with their options is said here too
        from ..__main__ import parser
        from .._tools.settings import load

        load(parser(), config.rootpath)
    return str(table.get("mode", "")).lower()


def _hook(packages: list[str]) -> "ImportHook":
    from dtypeguard._core.doors.hook import installed

    try:
        return installed(packages, now=False)  # a conftest may have them found
    except (ValueError, Warning) as error:  # a warning, if warnings are errors
        raise pytest.UsageError(f"--dtypeguard-packages: {error}") from None


def pytest_report_header(config: pytest.Config) -> str | None:
    mode, _, everywhere = config.stash[_run].mode.partition(":")
    where = "everywhere" if everywhere else "for contracts below the rootdir"
    return None if mode == "config" else f"dtypeguard: {mode} {where}"


# --- the mode -----------------------------------------------------------------------------------------------------


def _settings(config: pytest.Config, prefix: str = "", **chosen: str | None) -> dict[str, Any]:
    """A mode and a casting, from as users write them to as `dtypeguard.set_mode` takes them."""
    settings: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    for name, value in settings.items():
        if value not in _LEGAL[name]:
            meant = pyproject.near(value, _LEGAL[name])
            raise ValueError(f"{prefix}{name}={value!r} is not a {name}{meant}: use one of {', '.join(_LEGAL[name])}")
    if "mode" in settings:
        mode, _, everywhere = settings["mode"].partition(":")
        program = mode == "config"
        settings["mode"] = pyproject.environment() if program else mode
        settings["under"] = None if everywhere or program else config.rootpath
    return settings


def _loaded(module: str) -> Any:
    """A module of dtypeguard, if that is imported."""
    return sys.modules.get(f"dtypeguard._core.{module}")


def _current() -> Settings:
    modes = _loaded("base.config")
    return told if modes is None else modes.base()._asdict()


def _apply(settings: Settings) -> None:
    """Put settings in force, in the place of all others."""
    global told
    told, modes = settings, _loaded("base.config")
    if modes is not None:
        modes.rebase(modes.initial())


def _marks(node: Any) -> dict[str, Any]:
    """What the markers of a test, a class, a module say."""
    if node.get_closest_marker("dtypeguard_mode") is not None:
        raise TypeError("dtypeguard_mode is a fixture, and no marker: write @pytest.mark.dtypeguard(mode=...)")
    marks = _settings(node.config, **marked(node, "dtypeguard", _MARKER, ("mode", "casting")))
    return {} if node.config.stash[_run].switched_off else marks


def marked(node: Any, name: str, text: str, takes: Sequence[str]) -> dict[str, Any]:
    """The options that markers give, those of the closest first."""
    options: dict[str, Any] = {}
    for marker in node.iter_markers(name):
        wrong = [*map(repr, marker.args), *(key for key in marker.kwargs if key not in takes)]
        if wrong:
            meant = f" without a name: write {takes[0]}={wrong[0]}" if marker.args else pyproject.near(wrong[0], takes)
            raise TypeError(f"the marker {text.partition(':')[0]} does not take {', '.join(wrong)}{meant}")
        options = {**marker.kwargs, **options}
    return options


def plainly(what: str, call: Callable[[], T], *kinds: type[Exception]) -> T:
    """The result of a call; or a failure that shows the error's text, and none of our frames."""
    try:
        return call()
    except kinds as error:
        text = str(error)
    pytest.fail(f"{what}: {text}", pytrace=False)  # outside, or the error would be shown as what led to it


@pytest.hookimpl(wrapper=True, trylast=True)  # pytest's own wrappers must have begun before this may fail
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    cast, run = _loaded("repair.records"), item.config.stash[_run]
    run.begun = run.seen = None if cast is None else cast.mark()
    run.outside, run.marks = _current(), {}
    run.marks = plainly("dtypeguard", functools.partial(_marks, item), ValueError, TypeError)
    _apply({**run.outside, **run.marks})
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        _apply(item.config.stash[_run].outside)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
    if fixturedef.scope == "function":
        return (yield)
    teardown = _outside(request.node)
    fixturedef.addfinalizer(lambda: teardown.__exit__(None, None, None))
    try:
        with _outside(request.node):
            return (yield)
    finally:
        fixturedef.addfinalizer(teardown.__enter__)  # finalizers run in reverse


@contextlib.contextmanager
def _outside(node: Any) -> Iterator[None]:
    """A fixture that outlives the test: what its class, module, ... says counts, and a mode that it sets stays."""
    run, inside = node.config.stash[_run], _current()
    outside = run.outside
    _apply({**outside, **_marks(node)})
    try:
        yield
    finally:
        modes = _loaded("base.config")
        if modes is not None and modes.base() != modes.initial():
            run.outside = _current()
        _apply(inside if run.outside is outside else {**run.outside, **run.marks})


@pytest.fixture
def dtypeguard_mode(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Set the mode for the rest of the test: `dtypeguard_mode("lenient")`.

    It accepts the values of `--dtypeguard`, and `casting=` for lenient mode. The marker `dtypeguard` sets both for the
    whole test. A mode that `dtypeguard.set_mode` sets in a test ends with the test too.

    Returns:
        The function `dtypeguard_mode(mode=None, *, casting=None)`. It raises ValueError for an unknown mode or casting.

    Example:
        # test_mode.py
        import dtypeguard


        def test_repairs_are_allowed_from_here_on(dtypeguard_mode):
            assert dtypeguard.get_mode() == "strict"
            dtypeguard_mode("lenient")
            assert dtypeguard.get_mode() == "lenient"
    """

    def say(mode: str | None = None, *, casting: str | None = None) -> None:
        settings = _settings(request.config, mode=mode, casting=casting)
        if not request.config.stash[_run].switched_off:
            _apply({**_current(), **settings})

    return say


# --- repairs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def dtype_casts(request: pytest.FixtureRequest) -> Callable[[], list["CastRecord"]]:
    """The repairs of this test, setup included: `dtype_casts()` is the list so far.

    The list has records like `dtypeguard.casts()`, with the counts of this test only: `argument`, `function`,
    `from_dtype`, `to_dtype`, `site`, `count`, ... If the test calls `dtypeguard.reset_casts()`, it starts there.

    Returns:
        The function `dtype_casts()`, which returns the list.

    Example:
        # test_casts.py
        import dtypeguard
        import pytest
        import torch


        @pytest.mark.dtypeguard(mode="lenient")
        def test_one_argument_is_cast(dtype_casts):
            model = dtypeguard.guard(torch.nn.Linear(3, 1))
            with pytest.warns(dtypeguard.CastWarning):
                model(torch.ones(2, 3, dtype=torch.float64))
            assert [record.argument for record in dtype_casts()] == ["input"]
    """
    from dtypeguard._core.repair.records import since

    return functools.partial(since, request.config.stash[_run].begun)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    """Count what was repaired in a setup, call or teardown; say why an error is one."""
    _count(item)
    report = yield
    errors = _loaded("base.errors")
    error = call.excinfo.value if report.failed and call.excinfo is not None else None
    repairable = errors is not None and type(error) in (errors.DtypeError, errors.DeviceError)
    run = item.config.stash[_run]
    if repairable and not run.asked and "mode" not in run.marks:
        report.sections.append(("dtypeguard", _WHY))
    return report


def _count(item: pytest.Item) -> None:
    cast, run = _loaded("repair.records"), item.config.stash[_run]
    if cast is not None:
        for record in cast.since(run.seen):
            _add(run, _row(record), record.count, item.nodeid)
        run.seen = cast.mark()


def _row(record: "CastRecord") -> Row:
    moved = record.from_device != record.to_device
    sides = ((record.from_dtype, record.from_device), (record.to_dtype, record.to_device))
    old, new = (f"{dtype}".removeprefix("torch.") + f" on {device or 'NumPy'}" * moved for dtype, device in sides)
    return record.function, record.argument, old, new, str(record.site)


def _add(run: _Run, row: Row, count: int, first: str) -> None:
    run.repairs[row] += count
    run.first.setdefault(row, first)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    to_controller = getattr(session.config, "workeroutput", None)  # of pytest-xdist
    if to_controller is not None:
        run = session.config.stash[_run]
        to_controller[_SENT] = [[list(row), count, run.first[row]] for row, count in run.repairs.items()]
    if _unknown(session.config) and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Before tests run, all that they import has been found: a name that is nearly another one is misspelt."""
    for name, meant in _unknown(session.config).items():
        if meant:
            session.config.stash[_run].hook = None  # nothing more is to be said of it
            raise pytest.UsageError(_no_package(name, meant))


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    return [f"dtypeguard: {_no_package(name, meant)} yet" for name, meant in _unknown(config).items()]


def _no_package(name: str, meant: str) -> str:
    return f"--dtypeguard-packages: there is no package {name!r}{meant}"


def _unknown(config: pytest.Config) -> dict[str, str]:
    """The packages to enforce that do not exist, and which were meant; a test may still have them found."""
    hook = config.stash[_run].hook
    if hook is None or config.getoption("dist", "no") != "no":  # of the workers each knows for itself
        return {}
    there = {name.partition(".")[0] for name in sys.modules}
    finders = [finder for finder in sys.meta_path if finder is not hook._finder]  # ours takes note of who is looked for

    def is_found(name: str) -> bool:
        return name in sys.modules or any(finder.find_spec(name, None) is not None for finder in finders)

    lost = [name for name in hook.missing() if not is_found(name.partition(".")[0])]
    return {name: pyproject.near(name, there) for name in lost}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended."""
    for row, count, first in getattr(node, "workeroutput", {}).get(_SENT, ()):
        _add(node.config.stash[_run], tuple(row), count, first)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    run, verbosity = config.stash[_run], config.get_verbosity()
    distributed = config.getoption("dist", "no") != "no"  # then others import them
    missing = run.hook.missing() if run.hook is not None and not distributed else []
    unknown = _unknown(config)
    if missing := [name for name in missing if name not in unknown]:
        text = f"dtypeguard: no module of {', '.join(missing)} was imported, so nothing of it was enforced"
        terminalreporter.write_line(text, yellow=True)
    for name, meant in unknown.items():
        terminalreporter.write_line(f"ERROR: {_no_package(name, meant)}", red=True)
    if not run.repairs or verbosity < -1 or config.getoption("no_summary"):
        return
    from dtypeguard._show.text import number

    rows = sorted(run.repairs.items(), key=lambda item: (-item[1], item[0]))
    shown = rows if verbosity > 0 else rows[:_SHOWN]
    places, width = len({row[-1] for row in run.repairs}), len(str(rows[0][1]))
    title = f"dtypeguard: {number(run.repairs.total(), 'repair')} in {number(places, 'place')}"
    terminalreporter.write_sep("=", title, yellow=True)
    for row, count in shown:
        function, argument, old, new, site = row
        what = f"{function} `{argument}`: {old} -> {new}, at {site}"
        terminalreporter.write_line(f"{count:{width}} x {what} (first in {run.first[row]})")
    if len(shown) < len(rows):
        terminalreporter.write_line(f"... and {len(rows) - len(shown)} more; -v shows them all")
