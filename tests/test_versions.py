"""What is promised of versions: floors, and how long a branch for an old version may stay."""

import re
from pathlib import Path

import floors
import pytest
from packaging.version import Version

ROOT = floors.PYPROJECT.parent
FLOORS = {**dict(floors.floors()), "Python": floors.python()}


def test_every_requirement_has_a_floor():
    assert set(FLOORS) > {"torch", "jaxtyping", "pytest", "hypothesis", "transformers"}  # and floors() raises without


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("README.md", "Needs PyTorch {torch} or newer"),
        ("README.md", "`make` and Python {Python} or newer"),
        ("docs/quickstart.md", "dtypeguard needs Python {Python} and PyTorch {torch} or newer"),
    ],
)
def test_pages_name_the_floors(page, words):
    assert words.format_map(FLOORS) in (ROOT / page).read_text()


_BRANCH = re.compile(r"# .*?\b([A-Za-z][\w-]*) < (\d[\d.]*): .*goes with that floor")


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_a_branch_for_an_old_version_goes_with_its_floor(folder):
    """`# torch < 2.9: why; goes with that floor`: when the floor is there, the branch must go."""
    stale = [
        f"{path.name}: {found[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for found in _BRANCH.finditer(path.read_text())
        if Version(found[2]) <= Version(FLOORS[found[1]]) and path != Path(__file__)
    ]
    assert not stale
