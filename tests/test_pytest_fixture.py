"""The fixture `dtype_audit`, in runs of pytest."""

import json

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


VERDICTS = """
import unittest
watched = pytest.mark.dtype_audit

@pytest.fixture
def early(): bad(); yield; bad()

@pytest.fixture
def late(dtype_audit): bad(); yield; bad()

@pytest.fixture
def before(dtype_audit): bad(); raise OSError

@pytest.fixture
def after(dtype_audit): yield; raise OSError

@pytest.fixture
def asks(dtype_audit): return dtype_audit

def failed_finds(dtype_audit): bad()
def passed_clean(dtype_audit): good()
def passed_not_asked_for(): bad()
def passed_judged_by_itself(dtype_audit): bad(); dtype_audit.assert_clean(ignore=["DG103"])
def passed_judged_by_family(dtype_audit): bad(); dtype_audit.assert_clean("DG1")
def failed_judged_by_itself(dtype_audit): bad(); dtype_audit.assert_clean()
def failed_judged_then_bad(dtype_audit): dtype_audit.assert_clean(); bad()
def passed_judged_leniently_then_bad(dtype_audit): dtype_audit.assert_clean(ignore=["DG103"]); bad()

def passed_expected_to_be_bad(dtype_audit):
    bad()
    with pytest.raises(AssertionError): dtype_audit.assert_clean()

def failed_looked_at(dtype_audit): bad(); assert dtype_audit.findings[0].rule == "DG103"
def passed_comment(dtype_audit): x = torch.ones(3); x.to(torch.bfloat16)  # dtypeguard: ignore[DG103]

@pytest.mark.xfail(strict=True)
def skipped_xfail(dtype_audit): bad()

@pytest.mark.xfail(strict=True)
def failed_xfail(dtype_audit): good()

def skipped_inside(dtype_audit): bad(); pytest.skip("no")
def failed_in_the_body(request): request.getfixturevalue("dtype_audit"); bad()
def passed_in_the_body(request): bad(); request.getfixturevalue("dtype_audit"); good()
def failed_another_fixture_asks(asks): bad()
def passed_fixtures_are_not_audited(early, dtype_audit, late): good()
def failed_before(before): pass
def failed_after(after): good()

@pytest.mark.usefixtures("dtype_audit")
class UnitTests(unittest.TestCase):
    def test_failed_bad(self): bad()
    def test_passed_good(self): good()
    def test_failed_itself(self): self.fail("no")

@watched
def failed_marker(): bad()

@watched
def passed_marker_without_tensors(): pass

@watched(ignore=["DG1"])
def passed_marker_ignores(): bad()

@watched(select=["DG2"])
def passed_marker_selects(dtype_audit): bad()

@watched(fail_on="never")
def passed_marker_does_not_fail(dtype_audit): bad(); assert len(dtype_audit.findings) == 1

@watched(fail_on="never")
class Closest:
    @watched(fail=True)
    def failed_closest(self): bad()
    def passed_farther(self): bad()
"""


def test_verdicts(pytester):
    """Each test is called as it ends."""
    pytester.makeini("[pytest]\npython_functions = failed_* passed_* skipped_*\npython_classes = Closest")
    pytester.makepyfile(PROGRAM + VERDICTS)
    run = pytester.inline_run("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "error")
    outcomes = zip(("passed", "skipped", "failed"), run.listoutcomes(), strict=True)
    ended = {(name, report.nodeid.rpartition(":")[2].removeprefix("test_")) for name, rs in outcomes for report in rs}
    ended -= {("passed", "failed_after")}  # its call, before the teardown
    assert [end for end in ended if not end[1].startswith(end[0])] == []
    assert len(ended) == (VERDICTS.count("def ") - 5)


ADDED = {
    "collection": "def pytest_collection_modifyitems(items):\n    for item in items: item.add_marker(MARK)",
    "collection, last": "@pytest.hookimpl(trylast=True)\ndef pytest_collection_modifyitems(items):\n"
    "    for item in items: item.add_marker(MARK)",
    "collected": "def pytest_itemcollected(item): item.add_marker(MARK)",
    "module": "@pytest.hookimpl(trylast=True)\ndef pytest_collection_finish(session):\n"
    "    session.items[0].parent.add_marker(MARK)",
    "setup": "def pytest_runtest_setup(item): item.add_marker(MARK)",
    "setup, last": "@pytest.hookimpl(trylast=True)\ndef pytest_runtest_setup(item): item.add_marker(MARK)",
    "fixture": "@pytest.fixture(autouse=True)\ndef adds(request): request.node.add_marker(MARK)",
}
KINDS = {
    "plain": ("def test(): {0}", 1),
    "asks": ("def test(dtype_audit): {0}", 1),
    "asks in the body": ("def test(request): request.getfixturevalue('dtype_audit'); {0}", 1),
    "parameters": ("@pytest.mark.parametrize('x', [1, 2])\ndef test(x): {0}", 2),
    "unittest": ("import unittest\nclass Test(unittest.TestCase):\n    def test(self): {0}", 1),
}


@pytest.mark.parametrize("added", ADDED.values(), ids=ADDED)
def test_a_marker_counts_wherever_it_is_added_before_the_body(pytester, outcomes, added):
    pytester.makeconftest(f"import pytest\nMARK = pytest.mark.dtype_audit\n{added}")
    if "parent" in added:
        outcomes("def test(): bad()", failed=1)
        return
    for test, count in KINDS.values():
        outcomes(test.format("bad()"), failed=count)
    outcomes("def test(): good()", passed=1)
    pytester.makeconftest(f"import pytest\nMARK = pytest.mark.dtype_audit(ignore=['DG1'])\n{added}")
    outcomes("def test(): bad()", passed=1)


def test_a_marker_of_one_parameter_is_of_that_one_alone(outcomes):
    one = "pytest.param(1, marks=pytest.mark.dtype_audit)"
    outcomes(f"@pytest.mark.parametrize('x', [{one}, 2])\ndef test(x): bad()", failed=1, passed=1)


TOO_LATE = {
    "while the test runs": "def test(request): request.node.add_marker('dtype_audit'); good()",
    "after the fixture dtype_audit has begun": (
        "@pytest.fixture\ndef adds(request, dtype_audit):\n"
        "    request.node.add_marker(pytest.mark.dtype_audit(fail_on='never'))\n"
        "def test(adds): good()"
    ),
}


@pytest.mark.parametrize("when", TOO_LATE)
def test_a_marker_that_is_added_too_late_is_an_error(outcomes, when):
    ended = {"failed": 1} if "runs" in when else {"errors": 1}
    result = outcomes(TOO_LATE[when], **ended)
    result.stdout.fnmatch_lines([f"dtype_audit: a marker that is added {when} is too late: add it in *"])


def test_the_lowest_severity_that_fails(outcomes):
    info = "    torch.tensor(__import__('numpy').float64(1))\n"
    outcomes(f"def test(dtype_audit):\n{info}", passed=1)
    outcomes(f"@pytest.mark.dtype_audit(fail_on='info')\ndef test(dtype_audit):\n{info}", failed=1)
    result = outcomes("@pytest.mark.dtype_audit(fail_on='worse')\ndef test(dtype_audit): pass", failed=1)
    result.stdout.fnmatch_lines(["*fail_on='worse' is none of 'info', 'warning', 'error'*"])


# --- what is said


def test_the_failure_lists_the_findings(outcomes, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = outcomes("def test(dtype_audit): bad()", failed=1)
    result.stdout.fnmatch_lines(
        [
            "*FAILURES*",
            "dtype_audit: *",
            "warning?DG103?: The result of a cast is thrown away",
            "*--> test_the_failure_lists_the_findings.py:5 in bad",
            "*^^^^^*",
            "*gives a new bfloat16 tensor, and it is thrown away: `x` stays float32",
            "help: keep the result: *",
        ]
    )
    result.stdout.no_fnmatch_line("*_plugins*")  # no frames of ours
    result.stdout.no_fnmatch_line("During handling*")


def test_a_test_that_fails_by_itself_shows_both(outcomes):
    result = outcomes("def test(dtype_audit): bad(); assert 1 == 2", failed=1)
    result.stdout.fnmatch_lines(["E*assert 1 == 2", "*Captured dtype_audit call*", "warning?DG103?: *"])


def test_a_fault_in_the_body_is_at_the_test_s_own_line(outcomes):
    result = outcomes("def test(dtype_audit):\n    bad()\n    dtype_audit.assert_clean()\n", failed=1)
    result.stdout.fnmatch_lines([">*dtype_audit.assert_clean()", "E*AssertionError*", "E*DG103*"])
    result.stdout.no_fnmatch_line("*_report.py*")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("ignore=['DG999']", "dtype_audit: ignore='DG999' is no rule*"),
        (
            "ignores=[]",
            "*dtype_audit(select=None, ignore=(), values=None, every=None, source=None, omit=None, "
            "baseline=None, fail_on='warning') does not take ignores (did you mean 'ignore'?)",
        ),
        ("'DG1'", "*does not take 'DG1' without a name: write select='DG1'"),
        ("baseline='gone.json'", "dtype_audit: there is no baseline *gone.json*"),
    ],
)
def test_a_marker_that_is_wrong(outcomes, arguments, message):
    result = outcomes(f"@pytest.mark.dtype_audit({arguments})\ndef test(): print('ran')", errors=1)
    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*ran*")


def test_help_names_it(pytester):
    result = pytester.runpytest("--fixtures", "-q")
    result.stdout.fnmatch_lines(["dtype_audit -- *", "*Audit the body of the test*"])
    pytester.runpytest("--markers").stdout.fnmatch_lines(["@pytest.mark.dtype_audit(select=None*"])
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
    result = outcomes(TWO, "--dtypeguard-write-baseline", *workers, ini=INI, passed=3)
    result.stdout.fnmatch_lines(["dtypeguard: wrote 1 finding to */ci/known.json"])
    assert [(row["rule"], row["file"], row["source"]) for row in known(pytester)] == [
        ("DG103", "../test_a_baseline_is_written_and_then_nothing_is_new.py", "x.to(torch.bfloat16)")
    ]
    outcomes(TWO, *workers, ini=INI, passed=3)
    outcomes(TWO + "\ndef worse(x):\n    x.to(torch.float16)\ndef test_4(dtype_audit): worse(torch.ones(3))", *workers,
             ini=INI, passed=3, failed=1)  # fmt: skip


def test_a_baseline_counts_in_assert_clean_too_unless_that_names_another(outcomes, pytester, ci):
    outcomes(TWO, "--dtypeguard-write-baseline", ini=INI, passed=3)
    outcomes("def test(dtype_audit): bad(); dtype_audit.assert_clean()", ini=INI, passed=1)
    outcomes("def test(dtype_audit): bad(); dtype_audit.assert_clean(baseline=None)", ini=INI, failed=1)
    outcomes("@pytest.mark.dtype_audit(baseline=None)\ndef test(): bad()", ini=INI, failed=1)
    outcomes("@pytest.mark.dtype_audit(baseline='ci/known.json')\ndef test(): bad()", passed=1)


def test_where_no_test_was_audited_a_baseline_stays_as_it_is(outcomes, pytester, ci):
    outcomes(TWO, "--dtypeguard-write-baseline", ini=INI, passed=3)
    before = known(pytester)
    result = outcomes("def test(): pass", "--dtypeguard-write-baseline", ini=INI, passed=1)
    result.stdout.fnmatch_lines(["dtypeguard: no test was audited, *known.json stays as it is: *--dtypeguard-audit*"])
    assert (result.ret, known(pytester)) == (pytest.ExitCode.USAGE_ERROR, before)


def test_mere_information_is_known_too(outcomes, pytester, ci):
    test = "@pytest.mark.dtype_audit(fail_on='info')\ndef test(): torch.ones(3) * torch.ones(3).double()"
    outcomes(test, failed=1)
    outcomes(test, "--dtypeguard-write-baseline", ini=INI, passed=1)
    outcomes(test, ini=INI, passed=1)


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
        ("{", "dtype_audit: *known.json is no baseline, as *"),
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
