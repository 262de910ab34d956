"""docs/found.md: the faults of released packages are there, and an audit finds them at the line that the page names.

Each test needs the package in the version of the page; `pip install` it to run the test.
"""

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
_SPEC = importlib.util.spec_from_file_location("found", DOCS / "found.py")
found = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(found)

SECTIONS = found.sections(found.PAGE.read_text())
NUMBER = re.compile(r"-?\b(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan|inf)\b")


def numbers(text):
    return [float(number) for number in NUMBER.findall(text)]


def words(text):
    """Without what differs from run to run: digits, where lines break, and whether a module before was still alive."""
    return re.sub(r"[\s|]+", " ", NUMBER.sub("#", re.sub(r"(?<=\w)#\d+", "", text)))


def test_the_page_has_each_program_and_its_table_each_section():
    assert sorted(section.name for section in SECTIONS) == sorted(path.stem for path in found.PROGRAMS.glob("*.py"))
    begin, end = (found.PAGE.read_text().index(mark) for mark in found.MARKS)
    assert found.PAGE.read_text()[begin:end] == found.MARKS[0] + found.table(found.PAGE.read_text())


@pytest.mark.parametrize("section", SECTIONS, ids=[section.name for section in SECTIONS])
def test_a_fault_is_found_at_its_line(section):
    if why := section.unusable():
        pytest.skip(why)
    prints, findings = found.run(section.name)
    assert words(prints) == words(section.prints)
    assert numbers(prints) == pytest.approx(numbers(section.prints), rel=0.02, abs=1e-6, nan_ok=True)
    if section.rule is None:
        assert [finding for finding in findings if finding.severity in ("warning", "error")] == []
    else:
        chosen = section.chosen(findings)[:1]
        assert chosen != []
        assert words(found.said(chosen)) == words(section.says)
