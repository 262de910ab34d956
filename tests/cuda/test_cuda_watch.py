"""`amp.watch` where it is used: on a GPU, with fused, foreach and capturable optimizers."""

import itertools

import pytest
import torch
from support import BF16, F16
from torch import nn

import dtypeguard
from dtypeguard import AmpError


def net(device, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5)).to(device, dtype)


def batches(device, count=60):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x, y = torch.randn(16, 8, generator=generator), torch.randint(5, (16,), generator=generator)
        yield x.to(device), y.to(device)


def trained(device, optimizer, half, clip, watched):
    """Sixty steps, the first of them skipped by the scaler; what they leave behind."""
    model = net(device)
    optimizer = optimizer(model.parameters())
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**30) if half is F16 else None
    watch = dtypeguard.amp.watch(model, optimizer, scaler, mode="strict") if watched else None
    for x, y in batches(device):
        optimizer.zero_grad()
        with torch.autocast(device.type, half or F16, enabled=half is not None):
            output = model(x)
        loss = nn.functional.cross_entropy(output.float(), y)
        (loss if scaler is None else scaler.scale(loss)).backward()
        if clip:
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    moments = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return [*model.parameters(), *moments], watch


OPTIMIZERS = {
    f"{name} {' '.join(flags)}": lambda parameters, name=name, flags=flags: getattr(torch.optim, name)(
        parameters, lr=1e-2, **dict.fromkeys(flags, True)
    )
    for name, flags in itertools.product(["SGD", "AdamW"], [("foreach",), ("fused",), ("capturable",)])
    if (name, flags) != ("SGD", ("capturable",))
}


@pytest.mark.parametrize("clip", [False, True], ids=["", "clipped"])
@pytest.mark.parametrize("half", [None, BF16, F16])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_right_loop_is_the_same_bit_for_bit_and_silent(optimizer, half, clip, device, request):
    if device.type == "cpu" and "capturable" in request.node.name:
        pytest.skip("a rehearsal without a GPU")
    bare, _ = trained(device, optimizer, half, clip, watched=False)
    watched, watch = trained(device, optimizer, half, clip, watched=True)
    assert all(map(torch.equal, bare, watched))
    assert watch.report() == []


def test_no_step_between_two_looks_waits_for_the_gpu(device, unsynchronised):
    model = net(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler(device.type)
    dtypeguard.amp.watch(model, optimizer, scaler, mode="strict")
    for number, (x, y) in enumerate(batches(device, 47), 1):
        optimizer.zero_grad()
        with torch.autocast(device.type, F16):
            loss = nn.functional.cross_entropy(model(x).float(), y)
        if number <= 33:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            continue
        with unsynchronised():
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()


def test_state_on_another_device_than_its_parameter_is_named(gpu):
    model = net("cpu")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model.to(gpu)
    with pytest.raises(AmpError, match=r"DG403 state-differs: state `exp_avg`, `exp_avg_sq` of .* is on cpu"):
        dtypeguard.amp.watch(model, optimizer, mode="strict")


def test_non_finite_gradients_are_found_within_fifty_steps(device):
    model = net(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dtypeguard.amp.watch(model, optimizer, mode="strict")

    def train():
        for number, (x, y) in enumerate(batches(device)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x * (torch.nan if number == 35 else 1)), y).backward()
            optimizer.step()

    with pytest.raises(AmpError, match="DG408"):
        train()
