"""The plugin's modes, marker, fixtures and summary, in runs of pytest."""

import collections
import functools
import re
import subprocess
import sys
import typing

import pytest
import torch._dynamo
import torch._inductor.test_operators  # noqa: F401  (pytester forgets what a run imports first, and torch bears that once)

import dtypeguard
from dtypeguard._core.base import config as _config
from dtypeguard._plugins import pytest as plugin

pytest_plugins = "pytester"

# What tests below say of themselves; `met()` is the mode that a call met, by what it did.
PROGRAM = """
import warnings
import pytest, torch, dtypeguard
from jaxtyping import Float32
from torch import Tensor, nn

WRONG = torch.ones(3, dtype=torch.float64)
INTEGERS = torch.ones(3, dtype=torch.int64)

@dtypeguard.enforce
def f(x: Float32[Tensor, "n"]):
    return x

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x

def met(call=f):
    dtypeguard.reset_casts()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            result = call(WRONG)
        except dtypeguard.DtypeError:
            return "strict"
    return "lenient" if result is not WRONG else "warn" if said else "off"

def promotes():
    try:
        f(INTEGERS)
    except dtypeguard.CastError:
        return False
    return True
"""
# An installed package that relies on repairs.
RELIES = """
import torch, dtypeguard
from jaxtyping import Float32
from torch import Tensor, nn

@dtypeguard.enforce
def function(x: Float32[Tensor, "n"]):
    return x

def checking(x):
    return dtypeguard.check(x, Float32[Tensor, "n"])

class Net(dtypeguard.GuardedModule):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Float32[Tensor, "n"]):
        return x

def guards(model):
    return dtypeguard.guard(model)
"""
slow = functools.partial(pytest.param, marks=pytest.mark.slow)
QUIET = "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "ignore::dtypeguard.DtypeGuardWarning"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv("DTYPEGUARD_MODE", raising=False)


@pytest.fixture
def outcomes(pytester):
    """Runs tests that stand below the program, and compares how they end."""

    def run(tests, *options, ini="", program=PROGRAM, **expected):
        pytester.makeini(f"[pytest]\n{ini}\n")
        pytester.makepyfile(program + tests)
        result = pytester.runpytest(*options, *QUIET, "--strict-markers")
        result.assert_outcomes(**expected)
        return result

    return run


@pytest.fixture
def installed(tmp_path_factory, monkeypatch):
    """The package, outside of the rootdir."""
    folder = tmp_path_factory.mktemp("venv") / "lib" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "relies.py").write_text(RELIES)
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("relies", None)


@pytest.fixture
def not_imported(monkeypatch):
    """Whoever imports dtypeguard now imports it anew."""
    for name in [*sys.modules]:
        if name.partition(".")[0] == "dtypeguard" and not name.startswith("dtypeguard._plugins"):
            monkeypatch.delitem(sys.modules, name)


# --- where a mode comes from, and what it counts for


SOURCES = {  # command line, ini: in a test file, in an installed package
    (None, None): ("strict", "lenient"),
    ("lenient", None): ("lenient", "lenient"),
    ("config", None): ("lenient", "lenient"),
    ("strict:all", None): ("strict", "strict"),
    ("off:all", None): ("off", "off"),
    (None, "warn"): ("warn", "lenient"),
    (None, "warn:all"): ("warn", "warn"),
    ("strict", "off:all"): ("strict", "lenient"),
    ("config", "strict:all"): ("lenient", "lenient"),
}


@pytest.mark.thin(4)
@pytest.mark.parametrize(("option", "ini"), SOURCES)
def test_the_command_line_counts_before_the_ini_file(outcomes, installed, option, ini):
    here, there = SOURCES[option, ini]
    outcomes(
        f"""
import relies

WAYS = {{
    "function": relies.function,
    "check": relies.checking,
    "derived": relies.Net(),
    "guarded there": relies.guards(Net()),
}}

def test():
    ways = [f, dtypeguard.guard(Net()), dtypeguard.guard(relies.Net())]
    assert [met(way) for way in ways] == [{here!r}] * 3
    assert {{name: met(way) for name, way in WAYS.items()}} == dict.fromkeys(WAYS, {there!r})
""",
        *() if option is None else (f"--dtypeguard={option}",),
        ini="" if ini is None else f"dtypeguard_mode = {ini}",
        passed=1,
    )


@pytest.mark.parametrize(("option", "here"), [((), "strict"), (("--dtypeguard", "warn"), "warn")])
def test_the_command_line_counts_before_the_environment(outcomes, monkeypatch, option, here):
    monkeypatch.setenv("DTYPEGUARD_MODE", "off")
    ini = "" if option else "dtypeguard_mode = strict"
    outcomes(f"def test(): assert met() == {here!r}", *option, ini=ini, passed=1)


ENVIRONMENT = {  # the environment, options: what tests and installed packages meet, and what a test marked strict does
    ("warn", ""): ("warn", "warn", "strict"),
    ("", "--dtypeguard=config"): ("lenient", "lenient", "strict"),
    ("WARN", "--dtypeguard=config"): ("warn", "warn", "strict"),
    ("off", ""): ("off", "off", "off"),
    (" Off", "--dtypeguard=config"): ("off", "off", "off"),
    ("off", "--dtypeguard=lenient"): ("lenient", "lenient", "strict"),
}


@pytest.mark.parametrize(("environment", "option"), ENVIRONMENT)
def test_the_environment_counts_before_the_default(outcomes, installed, not_imported, monkeypatch, environment, option):
    here, there, marked = ENVIRONMENT[environment, option]
    monkeypatch.setenv("DTYPEGUARD_MODE", environment)
    tests = f"""
import relies

def test():
    assert (met(), met(relies.function)) == ({here!r}, {there!r})
    assert hasattr(f, "__wrapped__") is {here != "off"}

@pytest.mark.dtypeguard(mode="strict")
def test_marked():
    assert met() == {marked!r}

@pytest.mark.dtypeguard(mode="config")
def test_as_the_program():
    assert met() == {environment.strip().lower() or "lenient"!r}
"""
    outcomes(tests, *option.split(), passed=3)


def test_config_leaves_what_was_set_before_the_run(outcomes):
    dtypeguard.set_mode("warn", casting="promote")
    tests = "def test():\n    assert met() == 'warn'\n    with dtypeguard.mode('lenient'): assert promotes()"
    outcomes(tests, "--dtypeguard=config", passed=1)


def test_nothing_overrides_an_operator_who_switches_everything_off(outcomes):
    outcomes(
        """
@pytest.mark.dtypeguard(mode="strict")
def test(dtypeguard_mode):
    assert met() == "off"
    dtypeguard_mode("strict")
    assert met() == "off"
""",
        "--dtypeguard=off:all",
        passed=1,
    )


@pytest.mark.parametrize(("ini", "promoted"), [("", False), ("dtypeguard_casting = promote", True)])
def test_the_ini_file_says_what_lenient_mode_may_cast(outcomes, installed, ini, promoted):
    tests = f"""
import relies

def test():
    assert promotes() is {promoted}
    with pytest.raises(dtypeguard.CastError):
        relies.function(INTEGERS)
"""
    outcomes(tests, "--dtypeguard=lenient", ini=ini, passed=1)


WRONG = {
    "option": (
        ["--dtypeguard=stric"],
        "",
        "*argument --dtypeguard: invalid choice: 'stric' (did you mean 'strict'[?]) (choose from *",
    ),
    "option, nothing": (["--dtypeguard="], "", "*argument --dtypeguard: invalid choice: *"),
    "config for all": (["--dtypeguard=config:all"], "", "*argument --dtypeguard: invalid choice: *"),
    "mode": (
        [],
        "dtypeguard_mode = stric",
        "*dtypeguard_mode='stric' is not a mode (did you mean 'strict'[?]): use one of *",
    ),
    "casting": (
        [],
        "dtypeguard_casting = sage",
        "*dtypeguard_casting='sage' is not a casting (did you mean 'safe'[?]): use one of *",
    ),
}


@pytest.mark.parametrize(("options", "ini", "message"), WRONG.values(), ids=WRONG)
def test_a_value_that_is_none_is_a_usage_error_that_lists_the_legal_ones(pytester, options, ini, message):
    pytester.makeini(f"[pytest]\n{ini}\n")
    result = pytester.runpytest(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    kind = "casting" if "casting" in ini else "mode"
    line = next(line for line in result.stderr.lines if "choice" in line or "use one of" in line)
    assert [value for value in plugin._LEGAL[kind] if value not in line] == []


def test_the_plugin_knows_the_names_that_dtypeguard_knows():
    assert typing.get_args(_config.ModeName) == plugin._MODES
    assert typing.get_args(_config.CastingName) == plugin._LEGAL["casting"]


# --- the marker


MARKED = {
    "a class": (
        "@pytest.mark.dtypeguard(mode='warn')\nclass TestIt:\n    def test(self): assert met() == 'warn'\n"
        "def test(): assert met() == 'strict'",
        {"passed": 2},
    ),
    "a module": ("pytestmark = pytest.mark.dtypeguard(mode='off')\ndef test(): assert met() == 'off'", {"passed": 1}),
    "the closest": (
        "pytestmark = pytest.mark.dtypeguard(mode='off', casting='promote')\n"
        "@pytest.mark.dtypeguard(mode='lenient')\nclass TestIt:\n"
        "    def test(self): assert (met(), promotes()) == ('lenient', True)\n"
        "    @pytest.mark.dtypeguard(casting='safe')\n"
        "    def test_2(self): assert dtypeguard.get_mode() == 'lenient' and not promotes()\n"
        "def test(): assert met() == 'off'",
        {"passed": 3},
    ),
    "one parameter": (
        "@pytest.mark.parametrize('mode', ['strict', "
        "pytest.param('warn', marks=pytest.mark.dtypeguard(mode='warn'))])\n"
        "def test(mode): assert met() == mode",
        {"passed": 2},
    ),
    "unittest": (
        "import unittest\n@pytest.mark.dtypeguard(mode='warn')\nclass TestIt(unittest.TestCase):\n"
        "    def setUp(self): assert met() == 'warn'\n    def test(self): assert met() == 'warn'",
        {"passed": 1},
    ),
    "everywhere": (
        "import relies\n@pytest.mark.dtypeguard(mode='warn:all')\ndef test(): assert met(relies.function) == 'warn'\n"
        "@pytest.mark.dtypeguard(mode='warn')\ndef test_2(): assert met(relies.function) == 'lenient'\n"
        "@pytest.mark.dtypeguard(mode='config')\ndef test_3(): assert met() == 'lenient'",
        {"passed": 3},
    ),
    "setup and teardown": (
        "@pytest.fixture\ndef both():\n    assert met() == 'warn'\n    yield\n    assert met() == 'warn'\n"
        "def setup_function(): assert met() == 'warn'\ndef teardown_function(): assert met() == 'warn'\n"
        "@pytest.mark.dtypeguard(mode='warn')\ndef test(both): pass",
        {"passed": 1},
    ),
    "failures": (
        "@pytest.fixture\ndef broken(): raise OSError\n"
        "@pytest.mark.dtypeguard(mode='warn')\ndef test_1(): assert 0\ndef test_2(): assert met() == 'strict'\n"
        "@pytest.mark.dtypeguard(mode='warn')\ndef test_3(broken): pass\ndef test_4(): assert met() == 'strict'",
        {"failed": 1, "errors": 1, "passed": 2},
    ),
    "another thread": (
        "import threading\n@pytest.mark.dtypeguard(mode='warn')\ndef test():\n    seen = []\n"
        "    thread = threading.Thread(target=lambda: seen.append(met()))\n    thread.start(); thread.join()\n"
        "    assert seen == ['warn']",
        {"passed": 1},
    ),
    "fixtures that outlive the test": (
        "pytestmark = pytest.mark.dtypeguard(mode='warn')\n"
        "@pytest.fixture(scope='session')\n"
        "def of_session(): assert met() == 'strict'; yield; assert met() == 'strict'\n"
        "@pytest.fixture(scope='module')\ndef of_module(): assert met() == 'warn'; yield; assert met() == 'warn'\n"
        "@pytest.mark.dtypeguard(mode='off')\ndef test(of_session, of_module): assert met() == 'off'",
        {"passed": 1},
    ),
}  # fmt: skip


def test_the_marker(pytester, installed):
    """All in one run: none of them lasts."""
    pytester.makepyfile(**{f"test_{n}": PROGRAM + tests for n, (tests, _) in enumerate(MARKED.values())})
    expected = collections.Counter()
    for _, counts in MARKED.values():
        expected.update(counts)
    pytester.runpytest("--strict-markers", *QUIET).assert_outcomes(**expected)


def test_the_name_of_the_fixture_is_no_marker(pytester):
    pytester.makepyfile("import pytest\n@pytest.mark.dtypeguard_mode('lenient')\ndef test(): pass")
    result = pytester.runpytest(*QUIET, "-W", "ignore")
    result.stdout.fnmatch_lines(["dtypeguard: dtypeguard_mode is a fixture, and no marker: write @pytest.mark.dtype*"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "mode='stric'",
            "dtypeguard: mode='stric' is not a mode (did you mean 'strict'?): use one of strict, lenient, warn, *",
        ),
        (
            "mod='strict'",
            "dtypeguard: the marker dtypeguard(mode=None, casting=None) does not take mod (did you mean 'mode'?)",
        ),
        (
            "'strict'",
            "dtypeguard: the marker dtypeguard(mode=None, casting=None) does not take 'strict' without a name: write "
            "mode='strict'",
        ),
    ],
)
@pytest.mark.parametrize("options", [(), ("--dtypeguard=off:all",)], ids=["", "switched off"])
def test_a_marker_that_is_wrong_fails_its_test_before_it_runs(outcomes, arguments, message, options):
    tests = f"@pytest.mark.dtypeguard({arguments})\ndef test(): print('ran')\ndef test_2(): pass"
    result = outcomes(tests, *options, errors=1, passed=1)
    result.stdout.fnmatch_lines([message.replace("[", "[[]").replace("?", "[?]")])
    result.stdout.no_fnmatch_line("*ran*")
    result.stdout.no_fnmatch_line("*_plugins*")  # no frames of ours


# --- what tests set themselves


LASTS = {
    "a fixture of one test": (
        "@pytest.fixture\ndef warns(): dtypeguard.set_mode('warn')\n"
        "def test_1(warns): assert met() == 'warn'\ndef test_2(): assert met() == 'strict'",
        2,
    ),
    "the file": (
        "dtypeguard.set_mode('warn')\ndef test_1(): assert met() == 'warn'\ndef test_2(): assert met() == 'warn'",
        2,
    ),
    "the file, and a marker": (
        "dtypeguard.set_mode('warn')\n@pytest.mark.dtypeguard(mode='off')\ndef test_1(): assert met() == 'off'\n"
        "@pytest.mark.dtypeguard(casting='safe')\ndef test_2(): assert met() == 'warn'",
        2,
    ),
    "setup_class and teardown_class": (
        "class TestIt:\n    def setup_class(self): dtypeguard.set_mode('warn')\n"
        "    def teardown_class(self): dtypeguard.set_mode('strict')\n"
        "    def test_1(self): assert met() == 'warn'\n    def test_2(self): assert met() == 'warn'\n"
        "def test_3(): assert met() == 'strict'",
        3,
    ),
    "a fixture of the module with parameters": (
        "@pytest.fixture(scope='module', params=['warn', 'off'])\ndef mode(request):\n"
        "    before = met()\n    dtypeguard.set_mode(request.param)\n    yield request.param\n"
        "    assert met() == request.param\n    dtypeguard.set_mode(before)\n"
        "@pytest.mark.dtypeguard(casting='safe')\ndef test_1(mode): assert met() == mode\n"
        "def test_2(mode): assert met() == mode\n"
        "def test_3(): assert met() == 'off'",
        5,
    ),
    "a fixture of the session that asks for one of the module": (
        "@pytest.fixture(scope='session')\ndef warns(): dtypeguard.set_mode('warn'); yield; assert met() == 'off'\n"
        "@pytest.fixture(scope='module')\ndef off(warns):\n    assert met() == 'warn'\n    dtypeguard.set_mode('off')\n"
        "    yield\n    assert met() == 'off'\n"
        "@pytest.mark.dtypeguard(mode='lenient')\ndef test_1(off): assert met() == 'lenient'\n"
        "def test_2(): assert met() == 'off'",
        2,
    ),
    "a fixture of the module, called in a fixture of it": (
        "@pytest.fixture(scope='module')\ndef warns(): dtypeguard.set_mode('warn')\n"
        "@pytest.fixture(scope='module')\ndef asks(request):\n    request.getfixturevalue('warns')\n"
        "    assert met() == 'warn'\n"
        "def test_1(asks): assert met() == 'warn'\ndef test_2(): assert met() == 'warn'",
        2,
    ),
    "a fixture of the module that sets nothing": (
        "@pytest.fixture(scope='module')\ndef shared(): yield; assert met() == 'strict'\n"
        "def test_1(request):\n    dtypeguard.set_mode('warn')\n    request.getfixturevalue('shared')\n"
        "    assert met() == 'warn'\n"
        "def test_2(): assert met() == 'strict'",
        2,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tests", "passed"), LASTS.values(), ids=LASTS)
def test_what_a_test_sets_ends_with_it_and_what_outlives_it_stays(outcomes, tests, passed):
    outcomes(tests, passed=passed)


@pytest.mark.parametrize("failing", ["raise OSError", "yield; raise OSError"])
def test_a_fixture_of_the_module_that_fails_changes_nothing(outcomes, failing):
    tests = f"""
@pytest.fixture(scope="class")
def broken():
    {failing}

@pytest.mark.dtypeguard(mode="warn")
class TestIt:
    def test(self, broken):
        assert met() == "warn"

def test():
    assert met() == "strict"
"""
    outcomes(tests, errors=1, passed=1 + failing.startswith("yield"))


@pytest.mark.parametrize("place", ["import", "pytest_configure", "pytest_collection_modifyitems"])
def test_what_a_conftest_sets_stays(outcomes, pytester, place):
    setting = "dtypeguard.set_mode('warn')"
    pytester.makeconftest("import dtypeguard\n" + (setting if place == "import" else f"def {place}(): {setting}"))
    outcomes("def test_1(): assert met() == 'warn'\ndef test_2(): assert met() == 'warn'", passed=2)
    assert dtypeguard.get_mode() == "lenient"


# --- why an error is one


BECAUSE = "strict, because pytest runs it: --dtypeguard=lenient"
MEETS = "\ndef test(): f(WRONG)"


@pytest.mark.parametrize(
    ("test", "options", "said"),
    [
        (MEETS, (), True),
        ("\n@pytest.fixture\ndef wrong(): f(WRONG)\ndef test(wrong): pass", (), True),
        (MEETS, ("--dtypeguard=strict",), False),
        ("\n@pytest.mark.dtypeguard(mode='strict')" + MEETS, (), False),
        ("\ndef test(): f(torch.ones(3, 3))", (), False),
        ("\ndef test():\n    with dtypeguard.mode('lenient'): f(INTEGERS)", (), False),
        ("\ndef test(): assert 0", (), False),
        ("\n@pytest.mark.xfail" + MEETS, (), False),
    ],
    ids="call setup asked marked shape lenient other expected".split(),
)
def test_an_error_that_lenient_mode_would_repair_says_who_made_the_run_strict(pytester, test, options, said):
    pytester.makepyfile(PROGRAM + test)
    result = pytester.runpytest(*options, *QUIET)
    assert (BECAUSE in result.stdout.str()) is said


# --- a run in a test of another


@pytest.mark.thin(4)
@pytest.mark.parametrize("mode", [None, "warn"])
@pytest.mark.parametrize("options", [(), ("--dtypeguard=off:all",), ("--dtypeguard=config",), ("--dtypeguard=wrong",)])
def test_a_run_leaves_nothing_behind(pytester, mode, options):
    dtypeguard.set_mode(mode, casting="safe")
    before = plugin._current()
    pytester.makepyfile(PROGRAM + "dtypeguard.set_mode('strict')\ndef test(): dtypeguard.set_mode('off')")
    pytester.runpytest(*options, *QUIET)
    assert plugin._current() == before
    assert dtypeguard.get_mode() == mode or "lenient"


# --- fixtures


def test_the_fixture_dtypeguard_mode_lasts_to_the_end_of_the_test(outcomes, installed):
    outcomes(
        """
import relies

@pytest.fixture
def warns(dtypeguard_mode):
    dtypeguard_mode("warn")
    yield
    assert met() == "off"

@pytest.mark.parametrize("mode", ["strict", "lenient", "warn", "off"])
def test_each(dtypeguard_mode, mode):
    dtypeguard_mode(mode)
    assert (met(), met(relies.function)) == (mode, "lenient")
    dtypeguard_mode(f"{mode}:all")
    assert (met(), met(relies.function)) == (mode, mode)
    dtypeguard_mode("config")
    assert met() == "lenient"

@pytest.mark.dtypeguard(mode="lenient")
def test_over_others(warns, dtypeguard_mode):
    assert met() == "warn"
    dtypeguard_mode("off")
    assert met() == "off"

def test_casting(dtypeguard_mode):
    dtypeguard_mode("lenient", casting="promote")
    assert promotes()
    dtypeguard_mode(casting="safe")
    assert not promotes() and dtypeguard.get_mode() == "lenient"

def test_not_used(dtypeguard_mode):
    assert met() == "strict"

@pytest.mark.parametrize("value", ["stric", "", "config:all", 3])
def test_wrong(dtypeguard_mode, value):
    with pytest.raises(ValueError, match="is not a mode.*: use one of strict, lenient, warn, off, strict:all"):
        dtypeguard_mode(value)
    assert met() == "strict"
""",
        passed=11,
    )


def test_the_fixture_dtype_casts_has_the_repairs_of_the_test(outcomes):
    outcomes(
        """
def call():
    return f(WRONG)

def counts(records):
    return [(record.function, record.argument, record.count, record.bytes) for record in records]

@pytest.fixture(scope="module")
def shared():
    call()

@pytest.fixture
def repairs():
    call()

def test_1(dtype_casts):
    assert dtype_casts() == []
    for _ in range(3):
        call()
    assert counts(dtype_casts()) == [("f", "x", 3, 36)]
    assert dtype_casts()[0].from_dtype is torch.float64
    assert isinstance(dtype_casts()[0], dtypeguard.results.CastRecord)

def test_2(repairs, dtype_casts, shared):
    assert counts(dtype_casts()) == [("f", "x", 2, 24)]
    f(torch.ones(2).half())
    assert counts(dtype_casts()) == [("f", "x", 2, 24), ("f", "x", 1, 8)]
    assert counts(dtypeguard.casts()) == [("f", "x", 5, 60), ("f", "x", 1, 8)]
    dtype_casts().clear()
    assert len(dtype_casts()) == 2

def test_3(dtype_casts):
    call()
    dtypeguard.reset_casts()
    assert dtype_casts() == []
    call()
    assert counts(dtype_casts()) == [("f", "x", 1, 12)]
""",
        "--dtypeguard=lenient",
        passed=3,
    )


# --- the summary


REPAIRS = """
f(WRONG)  # of no test

@pytest.fixture(autouse=True)
def fresh(): dtypeguard.reset_casts()

def call(x=WRONG):
    return f(x)

@pytest.fixture
def around():
    call(torch.ones(3).half())
    yield
    call(torch.ones(3).half())

def test_1(): pass
def test_2(): call(); call()
def test_3(around): call()
def test_4(): f(WRONG); assert 0
"""


def section(result):
    """The title of the summary, and its lines."""
    found = re.search(
        r"^=+ (dtypeguard: .*?) =+\n((?:(?: *\d+ x|\.\.\.) .*\n)*)", result.stdout.str() + "\n", re.MULTILINE
    )
    return (None, []) if found is None else (found[1], found[2].splitlines())


@pytest.mark.parametrize("workers", [(), slow(("-n2",))], ids=["one process", "two workers"])
def test_the_summary_says_what_was_repaired(outcomes, pytester, workers):
    result = outcomes(REPAIRS, "--dtypeguard=lenient", *workers, passed=3, failed=1)
    file = "test_the_summary_says_what_was_repaired.py"
    lines = (pytester.path / file).read_text().splitlines()

    def at(start):
        return f"{file}:{next(n for n, line in enumerate(lines, 1) if line.strip().startswith(start))}"

    assert section(result) == (
        "dtypeguard: 6 repairs in 2 places",
        [
            f"3 x f `x`: float64 -> float32, at {at('return f(x)')}, in call (first in {file}::test_2)",
            f"2 x f `x`: float16 -> float32, at {at('return f(x)')}, in call (first in {file}::test_3)",
            f"1 x f `x`: float64 -> float32, at {at('def test_4')}, in test_4 (first in {file}::test_4)",
        ],
    )


def test_a_repair_of_an_installed_package_is_said_though_tests_are_strict(outcomes, installed):
    result = outcomes("import relies\ndef test(): relies.function(WRONG)", passed=1)
    title, (line,) = section(result)
    assert title == "dtypeguard: 1 repair in 1 place"
    assert "1 x function `x`: float64 -> float32" in line


LENGTHS = {  # options: rows, and what is said of the rest
    "": (20, ["... and 5 more; -v shows them all"]),
    "-v": (25, []),
    "-qq": (0, []),
    "--no-summary": (0, []),
}


@pytest.mark.parametrize("options", LENGTHS)
def test_how_long_the_summary_is(pytester, options):
    rows, rest = LENGTHS[options]
    lines = "\n".join(f"    [f(WRONG) for _ in range({n})]" for n in range(1, 26))
    pytester.makepyfile(PROGRAM + f"def test():\n{lines}")
    title, shown = section(pytester.runpytest("--dtypeguard=lenient", *options.split(), *QUIET))
    assert title == ("dtypeguard: 325 repairs in 25 places" if rows else None)
    assert [int(line.split(" x ")[0]) for line in shown[:rows]] == [*range(25, 25 - rows, -1)]
    assert shown[rows:] == rest


# --- other plugins, texts, and what is loaded


def test_the_plugin_can_be_turned_off(pytester):
    pytester.makepyfile(PROGRAM + "def test(): assert met() == 'lenient'\ndef test_2(dtype_audit): pass")
    result = pytester.runpytest("-p", "no:dtypeguard", *QUIET)
    result.assert_outcomes(passed=1, errors=1)
    assert section(result) == (None, [])


@pytest.mark.parametrize(
    "options", [("-q", "--dtypeguard=warn:all"), ("--co", "-q"), slow(("-v", "-n2"))], ids=" ".join
)
def test_a_run_that_needs_no_torch_loads_none(pytester, options):
    pytester.makeini(
        "[pytest]\nfilterwarnings = error\ndtypeguard_mode = lenient\ndtypeguard_casting = promote\n"
        "addopts = --strict-markers\n"
    )
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.dtypeguard(mode="warn", casting="safe")

        @pytest.fixture(scope="module")
        def shared():
            yield

        def test(shared, dtypeguard_mode):
            dtypeguard_mode("strict:all")
        """
    )
    pytester.makeconftest(
        """
        import sys

        def pytest_unconfigure(config):
            assert config.pluginmanager.has_plugin("dtypeguard")
            loaded = {"torch", "dtypeguard._core.base.config"} & {*sys.modules}
            with open("loaded", "a") as file:
                print(sorted(loaded), file=file)
        """
    )
    command = [sys.executable, "-m", "pytest", *options, "-p", "no:hypothesispytest"]
    run = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    assert not re.search(r"dtypeguard: \d+ repair", run.stdout)
    assert set((pytester.path / "loaded").read_text().splitlines()) == {"[]"}


WARN = "@pytest.mark.dtypeguard(mode='warn')"
SETS = "import dtypeguard; dtypeguard.set_mode('off')"
FIRST = {  # the marker of the first test, scope and body of a fixture: the mode in the first test, in the second
    ("", "function", "pass"): ("strict", "strict"),
    (WARN, "function", "assert mode() == 'warn'"): ("warn", "strict"),
    (WARN, "session", "assert mode() == 'strict'"): ("warn", "strict"),
    ("", "session", SETS): ("off", "off"),
    (WARN, "session", SETS): ("warn", "off"),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize(("marker", "scope", "body"), FIRST)
def test_the_mode_is_in_force_whoever_imports_dtypeguard_first(outcomes, not_imported, marker, scope, body):
    seen, then = FIRST[marker, scope, body]
    tests = f"""
import sys
import pytest

def mode():
    import dtypeguard
    return dtypeguard.get_mode()

@pytest.fixture(scope={scope!r})
def first():
    assert "dtypeguard._core.base.config" not in sys.modules
    {body}

{marker}
def test_1(first, dtypeguard_mode):
    assert mode() == {seen!r}

def test_2():
    assert mode() == {then!r}
"""
    outcomes(tests, program="", passed=2)


def test_the_plugin_may_be_loaded_by_a_conftest(outcomes, pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest("pytest_plugins = ['dtypeguard._plugins.pytest']")
    pytester.makeini("[pytest]\ndtypeguard_casting = promote")
    pytester.makepyfile(
        PROGRAM + "def test_1(dtype_audit): assert met() == 'strict'\n"
        "@pytest.mark.dtypeguard(mode='lenient')\ndef test_2(): assert promotes()"
    )
    pytester.runpytest("-W", "ignore::dtypeguard.DtypeGuardWarning").assert_outcomes(passed=2)


# --- watches and callbacks


def test_a_watch_in_a_test_file_is_strict_and_one_in_an_installed_package_is_not(pytester, tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "relies.py").write_text("import dtypeguard\ndef watch(*args): return dtypeguard.amp.watch(*args)\n")
    monkeypatch.syspath_prepend(folder)
    pytester.makepyfile("""
        import pytest, torch, dtypeguard, relies
        from torch import nn

        def parts():
            model = nn.Linear(3, 1).half()
            return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")

        def test_here():
            with pytest.raises(dtypeguard.AmpError):
                dtypeguard.amp.watch(*parts())

        def test_there():
            with pytest.warns(dtypeguard.AmpWarning):
                relies.watch(*parts())
    """)
    pytester.runpytest("-q").assert_outcomes(passed=2)


# --- packages that are enforced


SHOP = """
import torch
from jaxtyping import Float32
from torch import Tensor

def sell(x: Float32[Tensor, "n"]):
    return x
"""
SELLS = """
import pytest, torch, shop, dtypeguard

def test_sell():
    with pytest.raises(dtypeguard.DtypeError):
        shop.sell(torch.ones(3, dtype=torch.float64))
"""


@pytest.fixture
def shop(pytester):
    pytester.makepyfile(shop=SHOP)
    yield
    sys.modules.pop("shop", None)


@pytest.mark.parametrize("way", ["option", "ini", "list"])
def test_packages_are_enforced_as_soon_as_something_imports_them(pytester, shop, way):
    pytester.makeconftest("import shop")
    pytester.makepyfile(SELLS, other="")
    option = ["--dtypeguard-packages=other, shop"] if way == "option" else []
    named = {"option": '""', "ini": '"shop, other"', "list": '["shop", "other"]'}
    pytester.makepyprojecttoml(f"[tool.pytest.ini_options]\ndtypeguard_packages = {named[way]}\n")
    before = [*sys.meta_path]
    result = pytester.runpytest(*option, *QUIET)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["dtypeguard: no module of other was imported, so nothing of it was enforced"])
    assert sys.meta_path == before


def test_a_package_that_does_not_exist_is_wrong_usage(pytester, shop):
    pytester.makepyfile(SELLS)
    result = pytester.runpytest("--dtypeguard-packages=shop,shopp", *QUIET)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "passed" not in result.stdout.str()  # misspelt: no test has run
    result.stderr.fnmatch_lines(["ERROR: --dtypeguard-packages: there is no package 'shopp' (did you mean 'shop'?)"])
    result.stdout.no_fnmatch_line("*no module of*")


def test_a_package_that_no_test_has_found_is_wrong_usage_at_the_end(pytester, shop):
    pytester.makepyfile(SELLS + "def test_more():\n    import sys\n    sys.modules['kkkkkkk'] = sys\n")
    result = pytester.runpytest("--dtypeguard-packages=shop,wwwwwww,kkkkkkk", *QUIET)
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["ERROR: --dtypeguard-packages: there is no package 'wwwwwww'"])
    result.stdout.no_fnmatch_line("ERROR*kkkkkkk*")


@pytest.mark.slow
def test_packages_are_enforced_in_workers_too(pytester, shop):
    pytester.makepyfile(SELLS)
    result = pytester.runpytest_subprocess("--dtypeguard-packages=shop", "-n1", *QUIET)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*no module*")


def test_packages_that_are_no_names_are_a_usage_error(pytester):
    result = pytester.runpytest("--dtypeguard-packages=my-package", *QUIET)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --dtypeguard-packages: packages: 'my-package' is no name of a module*"])


def test_torch_is_imported_only_for_packages(pytester, shop):
    pytester.makepyfile("import sys\ndef test(): assert 'torch' not in sys.modules")
    for options, outcome in (((), "passed"), (["--dtypeguard-packages=shop"], "failed")):
        result = pytester.runpytest_subprocess(*options, "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
        result.assert_outcomes(**{outcome: 1})


PROJECT = {  # mode in [tool.dtypeguard], command line: what a test meets
    ("lenient", ""): "lenient",
    ("Warn", ""): "warn",
    ("lenient", "--dtypeguard=strict"): "strict",
    ("off", "--dtypeguard=config"): "off",
}


@pytest.mark.parametrize(("mode", "option"), PROJECT)
def test_a_mode_in_pyproject_counts_before_the_default(pytester, mode, option):
    pytester.makepyprojecttoml(f"[tool.dtypeguard]\nmode = '{mode}'\n")
    pytester.makepyfile(PROGRAM + f"def test(): assert met() == {PROJECT[mode, option]!r}")
    # Without a rootdir to go by, pyproject.toml is looked for once in a process.
    run = pytester.runpytest_subprocess if option == "--dtypeguard=config" else pytester.runpytest
    run(*option.split(), *QUIET).assert_outcomes(passed=1)


@pytest.mark.parametrize("options", [[], ["--dtypeguard=strict"]])
@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("mode = 'loud'", ":2: [[]tool.dtypeguard] mode='loud' is not a mode: use one of *"),
        ("ignores = []", ":2: [[]tool.dtypeguard] has no key 'ignores' (did you mean 'ignore'[?]): use *"),
        ("audit = {fail = 'error'}", ":2: [[]tool.dtypeguard.audit] has no key 'fail' (did you mean 'fail-on'[?]): *"),
    ],
)
def test_what_is_wrong_in_pyproject_stops_pytest(pytester, table, message, options):
    pytester.makepyprojecttoml(f"[tool.dtypeguard]\n{table}\n")
    result = pytester.runpytest(*QUIET, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *pyproject.toml{message}"])
