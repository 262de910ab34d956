"""`audit(values=, every=)`: some steps are looked at, no operation is seen in between, and what builds up is found."""

import threading

import pytest
import torch
from support import BF16, F32, same
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import dtypeguard


def modes():
    return torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def looked_at(program, every, count):
    """The steps of a program in which the audit has a mode on, from 1."""
    seen = []
    with dtypeguard.audit(values="range", every=every) as report:
        for number in range(1, count + 1):
            program(number, lambda number=number: seen.append((number, len(modes()))))
    return [number for number, on in seen if on], report


def training(optimizers=1, micro=1, validate=False):
    model = nn.Linear(4, 4)
    several = [torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(optimizers)]

    def step(number, look):
        for optimizer in several:
            for _ in range(micro):
                model(torch.randn(2, 4)).square().mean().backward()
            if optimizer is several[-1]:
                look()
            optimizer.step()
            optimizer.zero_grad()
        if validate:
            for _ in range(3):
                with torch.no_grad():
                    model(torch.randn(2, 4))

    return step


def calling(number, look, model=nn.Linear(4, 4)):  # noqa: B008  # the same model each time
    out = model(torch.randn(2, 4))
    look()
    out.sum().item()


POWERS = [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    ("program", "every", "steps"),
    [
        (training(), "2^k", POWERS),
        (training(), 5, [1, 6, 11, 16]),
        (training(), 1, list(range(1, 17))),
        (training(optimizers=2), 5, [5, 10, 15]),  # a step begins behind the first optimizer's, and holds both
        (training(micro=3), "2^k", POWERS[1:]),  # that it trains is known from its first step on
        (training(validate=True), "2^k", POWERS),
        (calling, "2^k", POWERS),
        (calling, 5, [1, 6, 11, 16]),
    ],
    ids=[
        "powers",
        "each fifth",
        "each",
        "two optimizers",
        "three batches",
        "validation",
        "no optimizer",
        "no optimizer, each fifth",
    ],
)
def test_which_steps_are_looked_at(program, every, steps):
    found, report = looked_at(program, every, 16)
    assert found == steps
    assert report.values["every"] == every
    assert modes() == []


def test_the_result_is_that_of_the_program_alone():
    def losses(every=None, values=True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        found = []
        for _ in range(20):
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.detach())
        return [*found, *model.parameters()]

    alone = losses()
    for values in (True, "range"):
        with dtypeguard.audit(values=values, every="2^k") as report:
            audited = losses()
        assert same(audited, alone)
        assert (report.values["steps"], report.values["looked_at"]) == (20, 5)
        assert "5 of 20 steps looked at" in " ".join(str(report).split())
        assert not report.findings


def test_a_mode_of_the_program_stays_where_it_is():
    step = training()
    with dtypeguard.audit(values=True, every="2^k"), FlopCounterMode(display=False) as flops:
        for number in range(1, 10):
            step(number, lambda: None)
    assert modes() == []
    assert flops.get_total_flops() == 9 * (64 + 64)  # forward, and backward of the weight


def test_steps_are_those_of_the_thread_in_which_the_audit_began():
    def train(count):
        step = training()
        for number in range(count):
            step(number, lambda: None)

    with dtypeguard.audit(values=True, every=4) as report:
        for count in (7, 2, 5):
            train(count)
            thread = threading.Thread(target=train, args=(3,))
            thread.start()
            thread.join()
            assert len(modes()) <= 1
    assert modes() == []
    assert (report.values["steps"], report.values["looked_at"]) == (14, 4)
    assert report.faults == []


def added(total, value):
    total.add_(value)
    return total


def assigned(total, value):
    return total + value


def lerped(total, value):
    return total.lerp_(value, 0.001)


@pytest.mark.parametrize("grow", [added, assigned, lerped])
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_what_builds_up_over_steps(grow, dtype):
    """No step that is looked at has lost much."""
    step, target = training(), 1.0 if grow is not lerped else 100.0
    with dtypeguard.audit(values=True, every="2^k") as report:
        total = torch.zeros(16, dtype=dtype)
        for number in range(1, 700):
            total = grow(total, torch.full((16,), target, dtype=dtype))
            step(number, lambda: None)
        assert total.sum() > 0
    found = [(finding.rule, finding.op) for finding in report.findings if finding.severity != "info"]
    assert [rule for rule, _ in found if rule == "DG903"] == (["DG903"] if dtype is BF16 else [])


def test_what_each_step_computes_anew_is_no_total():
    torch.manual_seed(0)
    model = nn.Linear(8, 1).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batches = [torch.randn(2, 8).bfloat16() for _ in range(16)]  # the steps that are looked at see one of them
    with dtypeguard.audit(values=True, every="2^k") as report:
        for step in range(1, 257):
            loss = model(batches[step % 16]).float().square().mean() / 1
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
    assert not [finding for finding in report.findings if finding.rule == "DG903"]


def test_nan_of_an_earlier_step_is_told_where_it_was_born():
    step, x = training(), torch.ones(4)
    with dtypeguard.audit(values=True, every="2^k") as report:
        bad = (x - x.mean()) / x.std()
        for number in range(1, 10):
            step(number, lambda: None)
            float(bad.sum())
    assert [(finding.rule, finding.site.split(", ")[0].rpartition(":")[2]) for finding in report.findings] == [
        ("DG901", str(test_nan_of_an_earlier_step_is_told_where_it_was_born.__code__.co_firstlineno + 3))
    ]


@pytest.mark.parametrize("every", ["2^k", 3])
def test_it_needs_values(every):
    with pytest.raises(ValueError, match=r"pass values=True"):
        dtypeguard.audit(every=every)


@pytest.mark.parametrize("every", ["sometimes", 0, -1, 2.5, True])
def test_a_wrong_number_of_steps(every):
    with pytest.raises(ValueError, match=r"audit takes every='2\^k'"):
        dtypeguard.audit(values=True, every=every)
