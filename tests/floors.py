"""The floors of pyproject.toml as pip's constraints: each `name>=1.2` of what users and the suite need, as `name==1.2`.

`make test-oldest` installs exactly these.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
GROUPS = ("tests", "integration")  # what the suite runs with; the rest only builds


def requirements() -> list[str]:
    """What users need, with every extra, and what the suite needs, as written."""
    content = tomllib.loads(PYPROJECT.read_text())
    project, groups = content["project"], content["dependency-groups"]
    extras = (one for extra in project["optional-dependencies"].values() for one in extra)
    found = [*project["dependencies"], *extras, *(one for name in GROUPS for one in groups[name])]
    return [one for one in found if not one.startswith("dtypeguard[")]


def floors() -> Iterator[tuple[str, str]]:
    """Names and the oldest versions.

    Raises:
        ValueError: for a requirement without a floor.
    """
    for requirement in requirements():
        found = re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement)
        if found is None:
            raise ValueError(f"{requirement!r} in pyproject.toml names no floor: write {requirement}>=1.2")
        yield found[1], found[2]


def python() -> str:
    return str(tomllib.loads(PYPROJECT.read_text())["project"]["requires-python"]).removeprefix(">=")


if __name__ == "__main__":
    print("\n".join(sorted({f"{name}=={version}" for name, version in floors()})))
