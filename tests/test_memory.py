"""Copies of a model are freed when a tool has ended: `gc` does not know how full a GPU is, and may come too late."""

import copy
import gc

import pytest
import torch
from torch import nn

import dtypeguard

SHAPE = 48, 32  # of the one parameter that is counted


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(*reversed(SHAPE)), nn.LayerNorm(SHAPE[0]), nn.Linear(SHAPE[0], 16)

    def forward(self, x):
        return self.head(self.norm(self.body(x)).relu())


def mean(out):
    return out.square().mean()


def audited(model, batch):
    with dtypeguard.audit(model, values=True) as report:
        mean(model(batch)).backward()
    model.zero_grad()
    return report


TOOLS = {
    "dryrun": dtypeguard.dryrun,
    "dryrun, no cell of which runs": lambda model, batch: dtypeguard.dryrun(model, batch.bool()),
    "compare": lambda model, batch: dtypeguard.compare(model, batch, dtype="bf16"),
    "compare, gradients": lambda model, batch: dtypeguard.compare(model, batch, dtype="fp16", loss=mean),
    "compare, a region": lambda model, batch: dtypeguard.compare(model, batch, region="bf16"),
    "keep": lambda model, batch: dtypeguard.compare(model, batch, dtype="bf16").keep(error=1e-4),
    "formats": lambda model, batch: dtypeguard.compare(model, batch, format="fp8"),
    "keep, formats": lambda model, batch: dtypeguard.compare(model, batch, format=("fp8", "bf16")).keep(error=1e-2),
    "diff": lambda model, batch: dtypeguard.diff(model, copy.deepcopy(model).bfloat16(), batch),
    "check_module": lambda model, batch: dtypeguard.testing.check_module(model, batch=batch),
    "audit": audited,
}


def alive():
    return sum(type(one) in (torch.Tensor, nn.Parameter) and one.shape == SHAPE for one in gc.get_objects())


@pytest.fixture
def _alone():
    """What other tests have made is not looked at."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_alone")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TOOLS)
def test_no_copy_of_the_model_outlives_the_call(name):
    model, batch = Net(), torch.randn(4, SHAPE[1])
    TOOLS[name](model, batch)  # what is imported and cached at the first call
    gc.collect()
    gc.disable()
    try:
        result = TOOLS[name](model, batch)
        assert alive() == 1, "beside the result"
        del result
    finally:
        gc.enable()
