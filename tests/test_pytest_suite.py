"""`pytest --dtypeguard-audit`: a whole suite under an audit, and one summary."""

import json
import xml.etree.ElementTree as ET

import pytest
import torch._dynamo
import torch._inductor.test_operators  # noqa: F401  (pytester forgets what a run imports first, and torch bears that once)

import dtypeguard.results  # noqa: F401  (and what is pickled must stay the same)

pytest_plugins = "pytester"

PROGRAM = """
import numpy as np
import torch

def scaled(x):
    return x * torch.from_numpy(np.linspace(0, 1, x.shape[-1]))

def lost(x):
    x.half()
"""
TESTS = """
import os
import pytest, torch
import program

@pytest.mark.parametrize("n", [1, 2, 3])
def test_scaled(n): program.scaled(torch.ones(n))

def test_lost(): program.lost(torch.ones(3))

def test_right(): assert torch.ones(2).sum() == 2

def test_wrong_by_itself():
    program.lost(torch.ones(3))
    assert False, "its own reason"

def test_raises():
    with pytest.raises(RuntimeError):
        torch.ones(3).half() @ torch.ones(3)

@pytest.mark.dtype_audit(ignore="DG103")
def test_marked(): program.lost(torch.ones(3))

@pytest.mark.skip
def test_skipped(): pass

def test_of_its_own_line(): torch.ones(3).half()
"""


@pytest.fixture
def run(pytester):
    """Runs the tests; `-n` workers are real processes."""
    pytester.mkdir("src").joinpath("program.py").write_text(PROGRAM)
    pytester.mkdir("tests").joinpath("test_program.py").write_text(TESTS)

    def run(*options, ini=""):
        pytester.makeini(f"[pytest]\npythonpath = src\nfilterwarnings = error\n{ini}\n")
        return pytester.runpytest("-p", "no:cacheprovider", "-p", "no:hypothesispytest", *options)

    return run


def test_a_line_is_told_once_with_its_tests(run):
    result = run("--dtypeguard-audit", "--dtypeguard-audit-source=src", "tests")
    result.assert_outcomes(failed=5, passed=4, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "dtypeguard audit: operations of every test, lines of src only",
            "*= dtypeguard audit: 5 of 9 tests, 2 lines =*",
            "warning?DG101?: *",
            " --> src/program.py:6 in scaled, 3 times, in 3 tests",
            "* mixes float64 and float32, 48 B",
            "warning?DG103?: *",
            " --> src/program.py:9 in lost, 2 times, in 2 tests",
            "FAILED tests/test_program.py::test_lost - Failed: warning?DG103? *",
            "FAILED tests/test_program.py::test_wrong_by_itself - AssertionError: its own*",
        ]
    )


def test_workers_make_one_summary(run):
    result = run("--dtypeguard-audit", "--dtypeguard-audit-source=src", "-n2", "tests")
    result.assert_outcomes(failed=5, passed=4, skipped=1)
    result.stdout.fnmatch_lines(
        ["*= dtypeguard audit: 5 of 9 tests, 2 lines =*", " --> src/program.py:6 in scaled, 3 times, in 3 tests"]
    )


def test_a_worker_that_dies_is_named_and_the_rest_is_told(run, pytester):
    pytester.path.joinpath("tests/test_program.py").write_text(f"{TESTS}\ndef test_dies(): os._exit(3)\n")
    result = run("--dtypeguard-audit", "-n1", "--dist=load", "tests")
    result.stdout.fnmatch_lines(
        [
            " --> src/program.py:6 in scaled, 3 times, in 3 tests",
            "not audited to its end, as its worker died: tests/test_program.py::test_dies",
        ]
    )


@pytest.mark.parametrize(
    ("options", "failed"),
    [
        ([], 1),  # by itself
        (["--dtypeguard-audit"], 6),
        (["--dtypeguard-audit=values", "--dtypeguard-audit-omit=tests/**,*/test_pytest_suite.py"], 5),
        (["--dtypeguard-audit=range", "--dtypeguard-audit-source=src"], 5),
        (["--dtypeguard-audit", "--dtypeguard-audit-fail-on=info"], 7),  # the refusal that a test expects
        (["--dtypeguard-audit", "--dtypeguard-audit-fail-on=error"], 1),
        (["--dtypeguard-audit", "--dtypeguard-audit-fail-on=never"], 1),
    ],
)
def test_what_fails(run, options, failed):
    run(*options, "tests").assert_outcomes(failed=failed, passed=9 - failed, skipped=1)


def test_a_baseline_leaves_what_is_new(run, pytester):
    ini = "dtypeguard_baseline = known.json"
    run("--dtypeguard-audit", "--dtypeguard-write-baseline", "tests", ini=ini).assert_outcomes(
        failed=1, passed=8, skipped=1
    )
    known = run("--dtypeguard-audit", "tests", ini=ini)
    known.stdout.fnmatch_lines(["*= dtypeguard audit: nothing that known.json does not know in 9 tests =*"])
    program = pytester.path / "src/program.py"
    program.write_text(PROGRAM + "\ndef new(x):\n    x.bfloat16()\n")
    tests = pytester.path / "tests/test_program.py"
    tests.write_text(f"{TESTS}\ndef test_new(): program.new(torch.ones(3))\n")
    result = run("--dtypeguard-audit", "tests", ini=ini)
    result.assert_outcomes(failed=2, passed=8, skipped=1)
    result.stdout.fnmatch_lines(["*= dtypeguard audit: 1 of 10 tests, 1 line =*", "* src/program.py:12 in new*"])


def test_files(run, pytester):
    names = ("found.sarif", "found.json", "found.html", "found.txt")
    run("--dtypeguard-audit", "--junitxml=junit.xml", *(f"--dtypeguard-audit-report={name}" for name in names), "tests")
    results = json.loads((pytester.path / "found.sarif").read_text())["runs"][0]["results"]
    assert {row["ruleId"] for row in results} >= {"DG101", "DG103"}
    found = json.loads((pytester.path / "found.json").read_text())
    (row,) = [row for row in found["findings"] if row["rule"] == "DG101"]
    assert row["seen_in"] == [f"tests/test_program.py::test_scaled[{n}]" for n in (1, 2, 3)]
    page, text = ((pytester.path / f"found.{end}").read_text() for end in ("html", "txt"))
    assert "src/program.py:6" in page
    assert "src/program.py:6" in text
    assert (found["tests"], found["seconds"] > 0) == (9, True)
    assert "<span>6 of 9 tests</span>" in page
    assert "No module ran" not in page  # of a suite nobody keeps them
    assert "; 9 tests" in text
    cases = {case.get("name"): case for case in ET.parse(pytester.path / "junit.xml").iter("testcase")}
    assert cases["test_lost"].find("failure").get("message").startswith("Failed: warning[DG103] src/program.py:9")
    marked = [one.get("value") for one in cases["test_wrong_by_itself"].iter("property")]
    assert marked == ["DG103 src/program.py:9"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            ["--dtypeguard-audit", "--dtypeguard-audit-source=srcc"],
            "*--dtypeguard-audit-source='srcc' is neither a folder or file below*",
        ),
        (
            ["--dtypeguard-audit", "--dtypeguard-audit-report=a.xml"],
            "ERROR: --dtypeguard-audit-report a.xml: the name must end with one of .html, *",
        ),
        (["--dtypeguard-audit", "--dtypeguard-audit-report=no/a.html"], "*cannot write no/a.html: there is no folder*"),
        (["--dtypeguard-audit-source=src"], "--dtypeguard-audit-source goes with --dtypeguard-audit"),
        (["--dtypeguard-audit-fail-on=error"], "--dtypeguard-audit-fail-on goes with --dtypeguard-audit"),
        (
            ["--dtypeguard-audit=all"],
            "*argument --dtypeguard-audit: invalid choice: 'all' (choose from 'values', 'range', or none)*",
        ),
        (["--dtypeguard-audit", "--dtypeguard-audit-fail-on=eror"], "*invalid choice: 'eror' (did you mean 'error'?)*"),
        (["--dtypeguard-audit=vals"], "*invalid choice: 'vals' (did you mean 'values'?) (choose from *"),
    ],
)
def test_bad_input_is_said_before_a_test_runs(run, options, error):
    result = run(*options, "tests")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{error}"])


def test_without_the_option_nothing_is_imported(pytester):
    pytester.makepyfile("import sys\ndef test(): assert 'torch' not in sys.modules")
    pytester.runpytest_subprocess("-p", "no:hypothesispytest").assert_outcomes(passed=1)
