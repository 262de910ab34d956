"""What only a GPU can show. Without one every test here is skipped, for one reason."""

import contextlib
import os
import warnings
from pathlib import Path

import pytest
import torch

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before cuBLAS wakes up: the same sums in the same order
DEVICE = torch.device(os.environ.get("DTYPEGUARD_TEST_DEVICE", "cuda:0"))  # "cpu" rehearses what needs no GPU


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    with warnings.catch_warnings(action="ignore"):  # a driver that is too old, say
        absent = DEVICE.type == "cuda" and not torch.cuda.is_available()
    # What torch, inductor and Triton remark on one GPU they do not on the next; our own warnings stay errors.
    quiet = pytest.mark.filterwarnings("ignore", "error::dtypeguard.DtypeGuardWarning")
    for item in items:
        if here in item.path.parents:
            item.add_marker(quiet, append=False)
            if absent:
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def device():
    """Where parameters are that are not on the CPU."""
    return DEVICE


@pytest.fixture(scope="session")
def gpu():
    """The same for what needs streams, graphs or two places."""
    if DEVICE.type != "cuda":
        pytest.skip("a rehearsal without a GPU")
    return DEVICE


@pytest.fixture(scope="session")
def second(gpu):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    return torch.device("cuda:1")


@pytest.fixture
def unsynchronised(gpu):
    """Makes a block in which the CPU may not wait for the GPU."""

    @contextlib.contextmanager
    def block():
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return block


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
