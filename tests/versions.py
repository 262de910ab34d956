"""The one way to skip a test for the version of a library: it names the version and the reason."""

from importlib.metadata import version

import pytest
import torch
from packaging.version import Version


def since(library: str, first: str, reason: str) -> pytest.MarkDecorator:
    """A mark: before the first version that is known to do it, the test is skipped.

    `reason` says what an older version does. Where users would meet it, docs/limits.md says so too.
    """
    return pytest.mark.skipif(_older(library, first), reason=_why(library, first, reason))


def need(library: str, first: str, reason: str) -> None:
    """The same from inside, for a program in a table."""
    if _older(library, first):
        pytest.skip(_why(library, first, reason))


def _older(library: str, first: str) -> bool:
    return Version(version(library)) < Version(first)


def _why(library: str, first: str, reason: str) -> str:
    return f"{library} {version(library)} < {first}: {reason}"


def reset_default_device() -> None:
    """What `torch.set_default_device(None)` is to do; before torch 2.10 `get_default_device` fails ever after."""
    torch.set_default_device(None)
    vars(torch._GLOBAL_DEVICE_CONTEXT).pop("device_context", None)
