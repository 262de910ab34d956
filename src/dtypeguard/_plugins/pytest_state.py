"""The pytest plugin's third part: the fixtures `dtype_manifest` and `dtype_diff`.

Neither torch nor dtypeguard is imported before a test uses one of them.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_UPDATE, _FOLDER = "--dtypeguard-update", "dtypes"
_WROTE = "dtypeguard_wrote"  # a property of a test, which workers hand over


class CheckManifest:
    """What the fixture `dtype_manifest` gives."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request, self._used = request, set[Path]()

    def __call__(self, model: Any, optimizer: Any = None, *, batch: Any = None, name: str | None = None,
                 shapes: bool = False, devices: bool = False) -> None:  # fmt: skip
        """Compare a model with its file, or write the file."""
        import dtypeguard
        from dtypeguard._core.state.reading import refuse_no_state

        __tracebackhide__ = True
        refuse_no_state(model)
        stem = f"{self._request.path.stem}.{self._request.node.name}" if name is None else name
        stem = re.sub(r"[^\w.-]+", "-", stem).strip("-")
        path = self._request.path.parent / _FOLDER / f"{stem}.lock"
        if path in self._used:
            pytest.fail("dtype_manifest: this test has a manifest of that name already: write name=", pytrace=False)
        self._used.add(path)
        if self._request.config.getoption(_UPDATE):
            made = dtypeguard.manifest(model, optimizer, batch, shapes=shapes, devices=devices)
            path.parent.mkdir(exist_ok=True)
            made.save(path)
            self._request.node.user_properties.append((_WROTE, str(path)))
            return
        again = f"pytest {_UPDATE} {self._request.node.nodeid!r} writes it"
        if not path.exists():
            pytest.fail(f"dtype_manifest: there is no {path}: {again}", pytrace=False)
        try:
            dtypeguard.manifest.load(path).check(model, optimizer, batch=batch)
        except dtypeguard.StateError as error:
            text = error.args[0]
        except ValueError as error:
            text = f"dtype_manifest: {error}"
        else:
            return
        pytest.fail(f"{text}\n  {'update':<10} {again} anew", pytrace=False)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was written."""
    reports = (one for several in terminalreporter.stats.values() for one in several)
    wrote = (value for one in reports for name, value in getattr(one, "user_properties", ()) if name == _WROTE)
    for path in sorted({os.path.relpath(value) for value in wrote}):
        terminalreporter.write_line(f"dtypeguard: wrote {path}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("dtypeguard").addoption(
        _UPDATE, action="store_true", help=f"write the manifests that dtype_manifest compares with, in {_FOLDER}/"
    )


@pytest.fixture
def dtype_manifest(request: pytest.FixtureRequest) -> CheckManifest:
    """Compare what a model holds with a file that is committed: `dtype_manifest(model)`.

    The file is `dtypes/<module>.<test>.lock` beside the test's, or `dtypes/<name>.lock` with `name=`. The test fails if
    the file is not there, or something differs; `pytest --dtypeguard-update` writes it. The other arguments are those
    of `dtypeguard.manifest`.

    Returns:
        The function that compares.

    Example:
        # test_state.py
        import torch


        def test_the_model_keeps_its_dtypes(dtype_manifest):
            model = torch.nn.Sequential(torch.nn.Linear(8, 8).to(torch.bfloat16), torch.nn.LayerNorm(8))
            dtype_manifest(model)
    """
    return CheckManifest(request)


class CheckDiff:
    """What the fixture `dtype_diff` gives."""

    def __call__(self, port: Any, original: Any, batch: Any, *, names: Any = None,
                 loss: Callable[..., Any] | None = None, rounding: bool = True) -> Any:  # fmt: skip
        """Compare two programs; fail where one is another function."""
        import dtypeguard

        __tracebackhide__ = True
        found = dtypeguard.diff(original, port, batch, names=names, loss=loss)
        if found.verdict == "another function" or (found.verdict == "b rounds worse" and not rounding):
            pytest.fail(f"dtype_diff: a is the original, b the port\n{found}", pytrace=False)
        return found


@pytest.fixture
def dtype_diff() -> CheckDiff:
    """Fail where a port computes another function than its original: `dtype_diff(port, original, batch)`.

    The arguments are those of `dtypeguard.diff`, with the port for b. With `rounding=False` the test also fails where
    the port rounds worse.

    Returns:
        The function that compares; it returns a `ProgramDiff`.

    Example:
        # test_port.py
        import copy

        import torch


        def test_the_port_computes_the_same(dtype_diff):
            original = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
            port = copy.deepcopy(original)
            dtype_diff(port, original, torch.randn(4, 8))
    """
    return CheckDiff()
