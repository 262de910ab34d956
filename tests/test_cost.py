"""docs/explanation/cost.md has the figures of benchmarks/RESULTS.md."""

import runpy
from pathlib import Path

COST = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "cost.py"))


def test_the_page_has_the_figures_of_the_benchmarks():
    text = COST["PAGE"].read_text()
    assert COST["written"](text) == text, "run `python docs/cost.py`"
    assert all(text.count(f"| {what} | ") == 1 for rows in COST["TABLES"].values() for what, *_ in rows)
