"""Every test starts with no mode set and no repair remembered."""

import pytest

import dtypeguard


@pytest.fixture(autouse=True)
def _fresh():
    dtypeguard.set_mode(None)
    dtypeguard.reset_casts()
    yield
    dtypeguard.set_mode(None)
    dtypeguard.reset_casts()


@pytest.fixture
def strict():
    """The rest of the test runs in strict mode."""
    dtypeguard.set_mode("strict")
