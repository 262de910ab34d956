"""The pytest plugin's fourth part: the fixture `dtype_diff`.

Neither torch nor dtypeguard is imported before a test uses the fixture.
"""

from collections.abc import Callable
from typing import Any

import pytest


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
