"""Every test starts with no mode set and no repair remembered."""

import pytest
import torch

import dtypeguard

torch.set_num_threads(1)  # the tensors are tiny, and threads of several test processes would wait for each other


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
