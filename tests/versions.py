"""The one way to skip a test for the version of a library: it names the version and the reason."""

from importlib.metadata import version

import pytest
from packaging.version import Version


def since(library: str, first: str, reason: str) -> pytest.MarkDecorator:
    """A mark: before the first version that is known to do it, the test is skipped.

    `reason` says what an older version does. Where users would meet it, docs/limits.md says so too.
    """
    here = version(library)
    return pytest.mark.skipif(Version(here) < Version(first), reason=f"{library} {here} < {first}: {reason}")
