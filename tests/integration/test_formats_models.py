"""`compare(format=)` on architectures of transformers: shares explain the error, and nothing of the model changes."""

import copy

import pytest
import torch
from architectures import ARCHITECTURES, drawn
from support import F32, LIBRARIES_WARN, same

from dtypeguard import compare

pytestmark = LIBRARIES_WARN


@pytest.mark.thin(6)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_shares_explain_the_error_of_an_architecture(name):
    torch.manual_seed(0)
    architecture = ARCHITECTURES[name]
    model = architecture.build().eval()
    given = architecture.inputs(drawn(F32))
    state, numbers = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    result = compare(model, given, format="int8")
    assert 0.97 < result.explained < 1.03
    kept = result.keep(error=0.5 * result.error)
    assert kept.error <= 0.5 * result.error
    assert {*kept.formats, *kept.names} == {*result._subject.weights}
    rows = compare(model, given, format="fp8:row")
    assert rows.error < 1e-6 or 0.95 < rows.explained < 1.05
    assert same(dict(model.state_dict()), dict(state))
    assert torch.equal(torch.get_rng_state(), numbers)
