"""What pages in docs/explanation say of costs and of the program is what the benchmarks and the tests say."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COST = runpy.run_path(str(ROOT / "docs" / "cost.py"))
ROWS = re.findall(r"^\| (.+) \| (`.+`) \|$", (ROOT / "docs" / "explanation" / "program.md").read_text(), re.MULTILINE)


def test_the_figures_are_those_of_the_benchmarks():
    text = COST["PAGE"].read_text()
    assert COST["written"](text) == text, "run `python docs/cost.py`"
    assert all(text.count(f"| {what} | ") == 1 for rows in COST["TABLES"].values() for what, *_ in rows)


@pytest.mark.parametrize(("claim", "shown"), ROWS)
def test_a_claim_has_a_test_that_shows_it(claim, shown):
    for file, test in re.findall(r"`([\w/]+\.py)::(\w+)`", shown):
        assert f"def {test}(" in (ROOT / "tests" / file).read_text()
    assert shown.count("::") == shown.count("`") / 2
