"""PyTorch's own inventory of modules and of inputs for them: an audit changes none, and finds no fault in them."""

from collections import Counter, defaultdict

import pytest
import torch
from test_module_db import BF16, F16, F32, F64, INFOS, LARGE, build, identical, outcome, plain, raised, samples

import dtypeguard

slow = pytest.mark.slow
pytestmark = pytest.mark.filterwarnings(
    "ignore:enable_nested_tensor is True",  # torch's own, when the module is built
)
TALLY = defaultdict(Counter)


def serious(report):
    assert report.faults == []
    return [finding for finding in report.findings if finding.severity != "info"]


def cases(values):
    """Each module with each value; those that are not quick, and large modules, are slow."""
    return [
        pytest.param(name, value, id=f"{name}-{plain(value)}", marks=[slow] * (name in LARGE or not quick))
        for name in INFOS
        for value, quick in values.items()
    ]


def compare(name, dtype, training, backward=False, region=None):
    """Run each sample bare, then all of them in one audit; how many there were that torch does not refuse."""
    accepted = []
    for constructor, inputs in samples(name, dtype, training, requires_grad=backward):
        with region or torch.autocast("cpu", enabled=False):
            expected = outcome(build(name, constructor, inputs, dtype, training), inputs.args, inputs.kwargs, backward)
        if not raised(expected[0]):
            accepted.append((build(name, constructor, inputs, dtype, training), inputs, expected))
    with dtypeguard.audit() as report:
        for module, inputs, (expected, said) in accepted:
            with region or torch.autocast("cpu", enabled=False):
                got, more = outcome(module, inputs.args, inputs.kwargs, backward)
            same = identical(got, expected) or (name in NOT_EXACT and close(got, expected))
            assert same, (training, inputs, got, expected)
            assert more <= said  # some of torch's warnings come once in a process
    return len(accepted), serious(report)


def true(name, dtype, training):
    """The rules that are right to speak up."""
    norms = name.startswith(("nn.BatchNorm", "nn.InstanceNorm", "nn.LazyBatchNorm", "nn.LazyInstanceNorm"))
    if norms and training and dtype in (F16, BF16):
        return {"DG502"}  # their running statistics lose updates in half
    if name == "nn.CosineEmbeddingLoss" and dtype is F16:
        return {"DG105"}  # it multiplies sums of squares, which leaves float16: such cosines are 0
    return set()


# A dispatch mode that does nothing changes the last bit of 2 of 857 samples, too.
NOT_EXACT = ("nn.LinearCrossEntropyLoss",)


def close(got, expected):
    return len(got) == len(expected) and all(
        torch.allclose(a, b, rtol=1e-5) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(got, expected, strict=True)
    )


@pytest.mark.thin(10)
@pytest.mark.parametrize(("name", "dtype"), cases({F32: True, BF16: True, F16: False, F64: False}))
def test_an_audit_changes_nothing_and_finds_nothing(name, dtype):
    for training in (True, False):
        count, found = compare(name, dtype, training)
        assert {finding.rule for finding in found} <= true(name, dtype, training), found
        TALLY["forward"]["samples"] += count
    TALLY["forward"]["cases"] += 1


@pytest.mark.thin(10)
@pytest.mark.parametrize(("name", "dtype"), cases({F32: True, BF16: False, F16: False, F64: False}))
def test_gradients_are_the_same_in_an_audit(name, dtype):
    count, found = compare(name, dtype, training=True, backward=True)
    assert {finding.rule for finding in found} <= true(name, dtype, True), found
    TALLY["backward"]["samples"] += count
    TALLY["backward"]["cases"] += 1


@pytest.mark.parametrize(("name", "dtype"), cases({BF16: False, F16: False}))
def test_nothing_changes_under_autocast(name, dtype):
    count, found = compare(name, F32, training=True, backward=True, region=torch.autocast("cpu", dtype))
    assert found == []
    TALLY["autocast"]["samples"] += count
    TALLY["autocast"]["cases"] += 1


# Of a whole run, slow tests too, in one process: how many cases there are, and of how many samples torch takes.
LEAST = {"forward": (456, 14000), "backward": (456, 5400), "autocast": (228, 1770)}


@pytest.mark.parametrize("sweep", LEAST)
def test_a_whole_sweep_is_as_large_as_it_was(sweep):
    cases, samples = LEAST[sweep]
    print(sweep, dict(TALLY[sweep]))
    if TALLY[sweep]["cases"] == cases:
        assert TALLY[sweep]["samples"] >= samples
    assert TALLY[sweep]["cases"] <= cases
