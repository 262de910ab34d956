"""The examples of everyday dtype trouble hold what they say."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def load(name: str) -> ModuleType:
    """A script of examples/, as a module; it need not be on the path."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SEEDS = load("seeds")


@pytest.mark.parametrize("example", SEEDS.ROWS.values(), ids=SEEDS.ROWS)
def test_seed(example: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    """Each asserts its own claims, and shows PyTorch alone and then dtypeguard."""
    example()

    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == "PyTorch"
    assert shown[-1] == "dtypeguard"
    assert set(shown) == {"PyTorch", "dtypeguard"}


def test_docstring_lists_every_row() -> None:
    """The table on top of the script is its own list of rows."""
    rows = [line.split("|")[1].strip() for line in (SEEDS.__doc__ or "").splitlines() if line.startswith("|")]

    assert [row for row in rows if row not in ("row", "---")] == list(SEEDS.ROWS)
