"""Mixed precision as it is done on a GPU: autocast, a real GradScaler, functions with `custom_fwd`."""

import copy
import itertools

import pytest
import torch
from jaxtyping import Float, Float32
from support import BF16, F16, F32, F64
from torch import Tensor, nn

import dtypeguard
from dtypeguard import CastWarning, DeviceError, DtypeError, enforce, guard

halves = pytest.mark.parametrize("half", [F16, BF16])


class Net(nn.Module):
    """Attention by matrix products, whose order of summing is fixed: no fused kernel chooses for itself."""

    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(width))
        self.qkv, self.head = nn.Linear(width, 3 * width), nn.Linear(width, 5)

    def forward(self, x, mask=None):
        x = self.stem(x)
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / k.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
        return self.head((x + scores.softmax(-1) @ v).mean(1))


def trained(model, half, device, steps=20):
    """What twenty steps leave behind: losses, parameters, the optimizer's moments; the scales, the scaler's state."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**22, growth_interval=6)
    mask = torch.ones(6, 6, dtype=torch.bool, device=device).triu(1)
    losses, scales = [], []
    for _ in range(steps):
        x, y = torch.randn(4, 6, 8, device=device), torch.randint(5, (4,), device=device)
        optimizer.zero_grad()
        with torch.autocast(device.type, half):
            loss = nn.functional.cross_entropy(model(x, mask=mask), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
        scales.append(scaler.get_scale())
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [*losses, *model.parameters(), *moments], scales, scaler.state_dict()


@halves
@pytest.mark.parametrize("depth", ["auto", "all"])
def test_twenty_steps_with_a_scaler_are_the_same_bit_for_bit(half, depth, device, deterministic):
    plain = Net().to(device)
    model = guard(copy.deepcopy(plain), mode="strict", depth=depth)
    before = [p.clone() for p in plain.parameters()]
    (expected, scales, state), (got, *rest) = trained(plain, half, device), trained(model, half, device)
    assert rest == [scales, state]
    assert len(got) == len(expected)
    assert all(a.dtype is b.dtype and torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(before, plain.parameters(), strict=True))
    falls, grows = (any(a * factor == b for a, b in itertools.pairwise(scales)) for factor in (0.5, 2))
    assert grows
    assert falls is (half is F16)  # steps were skipped, and nobody noticed the guard
    assert dtypeguard.casts() == []


@halves
@pytest.mark.parametrize("depth", ["auto", "all"])
def test_float64_is_named_and_repaired_inside_the_region(half, depth, device, deterministic):
    model = guard(Net().to(device).eval(), depth=depth)
    x = torch.randn(4, 6, 8, dtype=F64, device=device, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    with torch.autocast(device.type, half):
        with dtypeguard.mode("strict"):
            with pytest.raises(DtypeError) as caught:
                model(x)
            expected = model(y.float())
        with pytest.warns(CastWarning, match="`x` was cast from float64 to float32"):
            got = model(x)
    assert (caught.value.argument, caught.value.actual, caught.value.expected) == ("x", F64, F32)
    assert got.dtype is half
    assert torch.equal(got, expected)
    got.float().sum().backward(), expected.float().sum().backward()
    assert x.grad.dtype is F64
    assert torch.equal(x.grad, y.grad)


@halves
def test_a_half_tensor_from_the_cpu_is_only_moved(half, gpu):
    """What counts is autocast where the tensor will be."""
    model, x = guard(nn.Linear(8, 3).to(gpu)), torch.randn(2, 8).to(half)
    with torch.autocast("cuda", half):
        with dtypeguard.mode("strict"), pytest.raises(DeviceError) as caught:
            model(x)
        assert len(caught.value.violations) == 1
        with pytest.warns(CastWarning, match="moved"):
            assert torch.equal(model(x), model(x.to(gpu)))
    (record,) = dtypeguard.casts()
    assert (record.from_dtype, record.to_dtype) == (half, half)


def test_autocast_for_the_cpu_has_no_say_on_the_gpu(gpu):
    model, x = guard(nn.Linear(8, 3).to(gpu)), torch.randn(2, 8).bfloat16()
    with torch.autocast("cpu", BF16):
        with dtypeguard.mode("strict"), pytest.raises(DtypeError) as caught:
            model(x)
        assert len(caught.value.violations) == 2
        with pytest.warns(CastWarning, match=f"cast from bfloat16 to float32 and moved from cpu to {gpu}"):
            assert torch.equal(model(x), model(x.to(gpu, F32)))


def test_autocast_can_be_switched_off_for_a_loss(device):
    @enforce(autocast="disable")
    def loss(logits: Float32[Tensor, "b c"], target: Float32[Tensor, "b c"]) -> Float32[Tensor, "c c"]:
        assert not torch.is_autocast_enabled(device.type)
        return logits.mT @ target

    logits, target = torch.randn(4, 3, device=device), torch.randn(4, 3, device=device)
    expected = logits.mT @ target
    with torch.autocast(device.type, BF16), dtypeguard.mode("strict"):
        assert torch.equal(loss(logits, target), expected)
        with pytest.raises(DtypeError) as caught:
            loss(logits.bfloat16(), target)
        assert torch.is_autocast_enabled(device.type)
    assert caught.value.argument == "logits"


def scaled_product(device):
    """A function with its own backward, as kernels are bound: float32 inside, autocast or not."""

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device.type, cast_inputs=F32)
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        @torch.amp.custom_bwd(device_type=device.type)
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad @ weight.mT, x.mT @ grad

    return Product.apply


@halves
def test_a_function_with_custom_fwd_behind_enforce(half, device):
    product = scaled_product(device)

    @enforce
    def project(x: Float[Tensor, "b i"], weight: Float32[Tensor, "i o"]) -> Float32[Tensor, "b o"]:
        return product(x, weight)

    def run(fn, dtype, within):
        torch.manual_seed(3)
        x = torch.randn(4, 3).to(device, dtype).requires_grad_()
        weight = torch.randn(3, 2).to(device).requires_grad_()
        with torch.autocast(device.type, half, enabled=within):
            y = fn(x, weight)
        y.sum().backward()
        assert (y.dtype, x.grad.dtype, weight.grad.dtype) == (F32, dtype, F32)
        return y, x.grad, weight.grad

    with dtypeguard.mode("strict"):
        for dtype, within in ((F32, False), (F32, True), (half, True)):
            assert all(map(torch.equal, run(project, dtype, within), run(product, dtype, within)))
        with pytest.raises(DtypeError) as caught:
            project(torch.ones(4, 3, device=device), torch.ones(3, 2, device=device, dtype=half))
    assert caught.value.argument == "weight"
    assert dtypeguard.casts() == []
