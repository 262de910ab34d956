"""The fixture `dtype_audit`, in runs of pytest."""

import json
import subprocess
import sys

import pytest
import torch._dynamo
import torch._inductor.test_operators  # noqa: F401  (pytester forgets what a run imports first, and torch bears that once)

pytest_plugins = "pytester"

# A program with one fault, and one without; the fault is DG103.
PROGRAM = """
import pytest, torch

def bad():
    x = torch.ones(3)
    x.to(torch.bfloat16)
    return x

def good():
    return torch.ones(3).sum()
"""


@pytest.fixture
def outcomes(pytester):
    """Runs tests that stand below the program, and compares how they end."""

    def run(tests, *options, ini="", **expected):
        options = *options, "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--strict-markers"
        pytester.makeini(f"[pytest]\nfilterwarnings = error\n{ini}\n")
        pytester.makepyfile(PROGRAM + tests)
        result = pytester.runpytest(*options)
        result.assert_outcomes(**expected)
        return result

    return run


# --- verdicts


VERDICTS = {
    "finds": ("def test(dtype_audit): bad()", {"failed": 1}),
    "clean": ("def test(dtype_audit): good()", {"passed": 1}),
    "empty": ("def test(dtype_audit): pass", {"passed": 1}),
    "not asked for": ("def test(): bad()", {"passed": 1}),
    "intended": ("def test(dtype_audit): x = torch.ones(3).double().float()", {"passed": 1}),
    "judged by itself": ("def test(dtype_audit): bad(); dtype_audit.assert_clean(ignore=['DG103'])", {"passed": 1}),
    "judged by itself, by family": ("def test(dtype_audit): bad(); dtype_audit.assert_clean('DG1')", {"passed": 1}),
    "judged by itself, and bad": ("def test(dtype_audit): bad(); dtype_audit.assert_clean()", {"failed": 1}),
    "judged, then bad": ("def test(dtype_audit): dtype_audit.assert_clean(); bad()", {"failed": 1}),
    "judged leniently, then bad": (
        "def test(dtype_audit): dtype_audit.assert_clean(ignore=['DG103']); bad()",
        {"passed": 1},
    ),
    "expected to be bad": (
        "def test(dtype_audit):\n    bad()\n    with pytest.raises(AssertionError): dtype_audit.assert_clean()",
        {"passed": 1},
    ),
    "looked at": ("def test(dtype_audit): bad(); assert dtype_audit.findings[0].rule == 'DG103'", {"failed": 1}),
    "comment": (
        "def test(dtype_audit):\n    x = torch.ones(3)\n    x.to(torch.bfloat16)  # dtypeguard: ignore[DG103]",
        {"passed": 1},
    ),
    "comment on another rule": (
        "def test(dtype_audit):\n    x = torch.ones(3)\n    x.to(torch.bfloat16)  # dtypeguard: ignore[DG104]",
        {"failed": 1},
    ),
    "xfail": ("@pytest.mark.xfail(strict=True)\ndef test(dtype_audit): bad()", {"xfailed": 1}),
    "xfail, clean": ("@pytest.mark.xfail(strict=True)\ndef test(dtype_audit): good()", {"failed": 1}),
    "skipped inside": ("def test(dtype_audit): bad(); pytest.skip('no')", {"skipped": 1}),
    "skipped": ("@pytest.mark.skip\ndef test(dtype_audit): bad()", {"skipped": 1}),
    "fails by itself": ("def test(dtype_audit): good(); assert 0", {"failed": 1}),
    "parametrised": (
        "@pytest.mark.parametrize('f', [bad, good, bad])\ndef test(dtype_audit, f): f()",
        {"failed": 2, "passed": 1},
    ),
    "in a class": ("class TestIt:\n    def test(self, dtype_audit): bad()", {"failed": 1}),
    "usefixtures": ("@pytest.mark.usefixtures('dtype_audit')\ndef test(): bad()", {"failed": 1}),
    "for a file": ("pytestmark = pytest.mark.usefixtures('dtype_audit')\ndef test(): bad()\ndef test_2(): good()",
                   {"failed": 1, "passed": 1}),
    "in the body": ("def test(request): request.getfixturevalue('dtype_audit'); bad()", {"failed": 1}),
    "in the body, clean": ("def test(request): bad(); request.getfixturevalue('dtype_audit'); good()", {"passed": 1}),
    "unittest": (
        "import unittest\n@pytest.mark.usefixtures('dtype_audit')\nclass TestIt(unittest.TestCase):\n"
        "    def test_1(self): bad()\n    def test_2(self): good()\n    def test_3(self): self.fail('no')",
        {"failed": 2, "passed": 1},
    ),
    "another fixture asks": (
        "@pytest.fixture\ndef watched(dtype_audit): return dtype_audit\ndef test(watched): bad()",
        {"failed": 1},
    ),
    "autouse": ("@pytest.fixture(autouse=True)\ndef watched(dtype_audit): pass\ndef test(): bad()", {"failed": 1}),
    "fixtures are not audited": (
        "@pytest.fixture\ndef early(): bad(); yield; bad()\n"
        "@pytest.fixture\ndef late(dtype_audit): bad(); yield; bad()\n"
        "def test(early, dtype_audit, late): good()",
        {"passed": 1},
    ),
    "a fixture fails before": (
        "@pytest.fixture\ndef broken(dtype_audit): bad(); raise OSError\ndef test(broken): pass",
        {"errors": 1},
    ),
    "a fixture fails after": (
        "@pytest.fixture\ndef broken(dtype_audit): yield; raise OSError\ndef test(broken): good()",
        {"passed": 1, "errors": 1},
    ),
    "marker": ("@pytest.mark.dtype_audit\ndef test(): bad()", {"failed": 1}),
    "marker, no tensors": ("@pytest.mark.dtype_audit\ndef test(): pass", {"passed": 1}),
    "marker ignores": ("@pytest.mark.dtype_audit(ignore=['DG1'])\ndef test(): bad()", {"passed": 1}),
    "marker selects": ("@pytest.mark.dtype_audit(rules=['DG2'])\ndef test(dtype_audit): bad()", {"passed": 1}),
    "marker does not fail": (
        "@pytest.mark.dtype_audit(fail=False)\ndef test(dtype_audit): bad(); assert len(dtype_audit.findings) == 1",
        {"passed": 1},
    ),
    "the closest marker": (
        "@pytest.mark.dtype_audit(fail=False)\nclass TestIt:\n    @pytest.mark.dtype_audit(fail=True)\n"
        "    def test_1(self): bad()\n    def test_2(self): bad()",
        {"failed": 1, "passed": 1},
    ),
    "marker on parameters": (
        "@pytest.mark.parametrize('f', [bad, pytest.param(bad, marks=pytest.mark.dtype_audit(ignore=['DG103']))])\n"
        "def test(dtype_audit, f): f()",
        {"failed": 1, "passed": 1},
    ),
    "unknown rule": ("@pytest.mark.dtype_audit(ignore=['DG999'])\ndef test(): pass", {"errors": 1}),
    "unknown option": ("@pytest.mark.dtype_audit(ignores=['DG103'])\ndef test(): pass", {"errors": 1}),
    "rules by position": ("@pytest.mark.dtype_audit(['DG103'])\ndef test(): pass", {"errors": 1}),
}  # fmt: skip


@pytest.mark.parametrize(("tests", "expected"), VERDICTS.values(), ids=VERDICTS.keys())
def test_verdicts(outcomes, tests, expected):
    outcomes(tests, **expected)


# --- what is said


def test_the_failure_lists_the_findings(outcomes):
    result = outcomes("def test(dtype_audit): bad()", failed=1)
    result.stdout.fnmatch_lines(
        [
            "*FAILURES*",
            "dtype_audit: *",
            "warning DG103 discarded-cast  test_the_failure_lists_the_findings.py:5, in bad",
            "*`x.to(torch.bfloat16)` gives a new bfloat16 tensor, and it is thrown away: `x` stays float32",
            "*fix: keep the result: *",
        ]
    )
    result.stdout.no_fnmatch_line("*dtypeguard_pytest*.py*")  # no frames of ours
    result.stdout.no_fnmatch_line("During handling*")


def test_a_test_that_fails_by_itself_shows_both(outcomes):
    result = outcomes("def test(dtype_audit): bad(); assert 1 == 2", failed=1)
    result.stdout.fnmatch_lines(["E*assert 1 == 2", "*Captured dtype_audit call*", "warning DG103 *"])


def test_a_test_that_fails_by_itself_and_is_clean_shows_nothing_more(outcomes):
    result = outcomes("def test(dtype_audit): good(); assert 1 == 2", failed=1)
    result.stdout.no_fnmatch_line("*dtype_audit call*")


def test_a_fault_in_the_body_is_at_the_test_s_own_line(outcomes):
    result = outcomes("def test(dtype_audit):\n    bad()\n    dtype_audit.assert_clean()\n", failed=1)
    result.stdout.fnmatch_lines([">*dtype_audit.assert_clean()", "E*AssertionError*", "E*DG103*"])
    result.stdout.no_fnmatch_line("*_report.py*")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("ignore=['DG999']", "dtype_audit: ignore='DG999' is no rule*"),
        ("ignores=[]", "*dtype_audit(rules=None, ignore=(), baseline=None, fail=True) does not take ignores"),
        ("'DG1', x=3", "*does not take 'DG1', x"),
        ("baseline='gone.json'", "dtype_audit: there is no baseline *gone.json*"),
    ],
)
def test_a_marker_that_is_wrong(outcomes, arguments, message):
    result = outcomes(f"@pytest.mark.dtype_audit({arguments})\ndef test(): print('ran')", errors=1)
    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*ran*")


def test_a_broken_pyproject_is_an_error_before_the_test(outcomes, pytester):
    pytester.makepyprojecttoml("[tool.dtypeguard]\nignores = ['DG1']")
    result = outcomes("def test(dtype_audit): print('ran')", errors=1)
    result.stdout.fnmatch_lines(["*pyproject.toml: [[]tool.dtypeguard] has no key 'ignores'*"])
    result.stdout.no_fnmatch_line("*ran*")


def test_pyproject_chooses_rules(outcomes, pytester):
    pytester.makepyprojecttoml("[tool.dtypeguard]\nper-file-ignores = {'test_*.py' = ['DG103']}")
    outcomes("def test(dtype_audit): bad()", passed=1)


def test_help_names_it(pytester):
    result = pytester.runpytest("--fixtures", "-q")
    result.stdout.fnmatch_lines(["dtype_audit -- *", "*Audit the body of the test*"])
    pytester.runpytest("--markers").stdout.fnmatch_lines(["@pytest.mark.dtype_audit(rules=None*"])
    pytester.runpytest("--help").stdout.fnmatch_lines(
        ["*--dtypeguard-write-baseline*", "*dtypeguard_baseline (string)*"]
    )


# --- nothing stays


def test_nothing_stays_installed(outcomes):
    outcomes(
        """
import gc, weakref
from torch.utils._python_dispatch import _get_current_dispatch_mode
before = torch.nn.Module.__call__, torch.from_dlpack
kept = []

@pytest.mark.parametrize("f", [bad, good])
def test_on(dtype_audit, f):
    assert _get_current_dispatch_mode() is not None
    kept.append(weakref.ref(dtype_audit))
    f()

def test_off():
    assert _get_current_dispatch_mode() is None
    assert (torch.nn.Module.__call__, torch.from_dlpack) == before

@pytest.fixture
def ends():
    yield
    assert _get_current_dispatch_mode() is None

def test_teardown_of_fixtures(dtype_audit, ends):
    pass

def test_reports_are_let_go():
    gc.collect()
    assert kept[1]() is None
""",
        failed=1,
        passed=4,
    )


# --- baselines


INI = "dtypeguard_baseline = ci/known.json"
TWO = "def test_1(dtype_audit): bad()\ndef test_2(dtype_audit): good()\ndef test_3(dtype_audit): bad()\n"


def known(pytester):
    return json.loads((pytester.path / "ci" / "known.json").read_text())["findings"]


@pytest.fixture
def ci(pytester):
    pytester.mkdir("ci")


@pytest.mark.parametrize(
    "workers", [(), pytest.param(("-n2",), marks=pytest.mark.slow)], ids=["one process", "two workers"]
)
def test_a_baseline_is_written_and_then_nothing_is_new(outcomes, pytester, ci, workers):
    outcomes(TWO, "--dtypeguard-write-baseline", *workers, ini=INI, passed=3)
    assert [(row["rule"], row["file"], row["source"]) for row in known(pytester)] == [
        ("DG103", "../test_a_baseline_is_written_and_then_nothing_is_new.py", "x.to(torch.bfloat16)")
    ]
    outcomes(TWO, *workers, ini=INI, passed=3)
    outcomes(TWO + "\ndef worse(x):\n    x.to(torch.float16)\ndef test_4(dtype_audit): worse(torch.ones(3))", *workers,
             ini=INI, passed=3, failed=1)  # fmt: skip


def test_without_its_baseline_it_fails(outcomes, ci):
    outcomes(TWO, failed=2, passed=1)


def test_a_baseline_of_a_clean_run_is_empty(outcomes, pytester, ci):
    outcomes("def test(dtype_audit): good()", "--dtypeguard-write-baseline", ini=INI, passed=1)
    assert known(pytester) == []
    outcomes("def test(dtype_audit): bad()", ini=INI, failed=1)


def test_a_baseline_counts_in_assert_clean_too_unless_that_names_another(outcomes, pytester, ci):
    outcomes(TWO, "--dtypeguard-write-baseline", ini=INI, passed=3)
    outcomes("def test(dtype_audit): bad(); dtype_audit.assert_clean()", ini=INI, passed=1)
    outcomes("def test(dtype_audit): bad(); dtype_audit.assert_clean(baseline=None)", ini=INI, failed=1)
    outcomes("@pytest.mark.dtype_audit(baseline=None)\ndef test(): bad()", ini=INI, failed=1)
    outcomes("@pytest.mark.dtype_audit(baseline='ci/known.json')\ndef test(): bad()", passed=1)


def test_a_finding_that_came_twice_in_one_test_is_known_twice(outcomes, pytester, ci):
    tests = (
        "def test(dtype_audit):\n    x = torch.ones(3)\n    x.to(torch.bfloat16)\n    x.to(torch.bfloat16)\n"
        "def test_2(dtype_audit): bad()"
    )
    outcomes(tests, "--dtypeguard-write-baseline", ini=INI, passed=2)
    assert [row["function"] for row in known(pytester)] == ["bad", "test", "test"]
    outcomes(tests, ini=INI, passed=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "dtype_audit: there is no baseline *known.json: write it first*"),
        ("{", "dtype_audit: *known.json is no baseline: *"),
        ("{}", "dtype_audit: *known.json is no baseline of dtypeguard: it lacks *"),
    ],
)
def test_a_baseline_that_is_none(outcomes, pytester, ci, text, message):
    if text is not None:
        (pytester.path / "ci" / "known.json").write_text(text)
    result = outcomes("def test(dtype_audit): print('ran')\ndef test_2(): pass", ini=INI, errors=1, passed=1)
    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*ran*")


def test_writing_needs_a_path(pytester):
    result = pytester.runpytest("--dtypeguard-write-baseline")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --dtypeguard-write-baseline needs dtypeguard_baseline = PATH *"])


# --- other plugins, and no plugin


def test_with_workers(outcomes):
    outcomes("@pytest.mark.parametrize('n', range(6))\ndef test(dtype_audit, n): [bad, good][n % 2]()", "-n2",
             failed=3, passed=3)  # fmt: skip


def test_it_can_be_turned_off(pytester):
    pytester.makepyfile("def test(): pass")
    pytester.runpytest("-p", "no:dtypeguard").assert_outcomes(passed=1)


def test_loading_the_plugin_imports_neither_torch_nor_dtypeguard(pytester):
    pytester.makepyfile("def test(): pass")
    pytester.makeconftest(
        "import sys\n"
        "def pytest_unconfigure(config):\n"
        "    assert config.pluginmanager.has_plugin('dtypeguard')\n"
        "    loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "    print('LOADED', sorted(loaded & {'torch', 'dtypeguard'}))\n"
    )
    for options in (["--co", "-q"], ["-q"]):
        command = [sys.executable, "-m", "pytest", *options, "-p", "no:hypothesispytest", "-s", "-W", "error"]
        run = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True)
        assert (run.returncode, run.stderr) == (0, "")
        assert "LOADED []" in run.stdout
