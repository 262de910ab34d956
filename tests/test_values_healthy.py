"""`audit(values=True)` is silent where values are as right as they can be: what is zero by construction is no loss."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dtypeguard import audit

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def trained(*layers, x, dtype=F32, region=None):
    """A few steps; DG502 has its own word about running statistics in bfloat16."""
    net = nn.Sequential(*layers).to(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        with torch.autocast("cpu", dtype=region or BF16, enabled=region is not None):
            out = net(x.to(dtype))
        optimizer.zero_grad()
        out.float().square().mean().backward()
        optimizer.step()
    return [buffer.tolist() for buffer in net.buffers()]


ROWS, IMAGES = (16, 8), (4, 3, 8, 8)
NORMS = {
    "batch norms": (lambda: [nn.Linear(8, 8), nn.BatchNorm1d(8), nn.BatchNorm1d(8), nn.Linear(8, 4)], ROWS),
    "batch norms of images": (lambda: [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.BatchNorm2d(8)], IMAGES),
    "behind an instance norm": (lambda: [nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8), nn.BatchNorm2d(8)], IMAGES),
    "behind a group norm": (lambda: [nn.Conv2d(3, 8, 3), nn.GroupNorm(8, 8), nn.BatchNorm2d(8)], IMAGES),
    "layer norms": (lambda: [nn.Linear(8, 8), nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 4)], ROWS),
}


@pytest.mark.parametrize("how", [{}, {"dtype": BF16}, {"region": BF16}], ids=["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize(("layers", "shape"), NORMS.values(), ids=list(NORMS))
def test_a_norm_behind_a_norm(layers, shape, how):
    torch.manual_seed(0)
    silent(lambda: trained(*layers(), x=torch.randn(shape), **how))


def silent(program):
    with audit(select="DG9", values=True) as report:
        program()
    assert report.faults == []
    assert [str(finding) for finding in report.findings if finding.severity != "info"] == []


def pair(dtype=F32):
    """A tensor, and the same by another way."""
    one = torch.randn(100).to(dtype)
    return one, one * 3 / 3


def same_by_two_ways(dtype):
    a, b = pair(dtype)
    distances = ((a - b) ** 2).mean().sqrt(), F.mse_loss(a, b).sqrt(), torch.dist(a, b), (a - b).abs().max()
    return [one.item() for one in (*distances, (1 - F.cosine_similarity(a, b, 0)), F.l1_loss(a, b))]


def ratio_of_a_policy():
    new = torch.randn(256)
    ratio = (new * (1 + 1e-7) - new).exp()
    return ((ratio - 1).abs() > 0.2).float().mean().item(), ((ratio - 1) - ratio.log()).mean().item()


def residual_of_a_fit():
    table, weights = torch.randn(50, 3), torch.randn(3)
    found = torch.linalg.lstsq(table, (table @ weights)[:, None]).solution[:, 0]
    return (table @ found - table @ weights).square().mean().sqrt().item()


def root_by_newton():
    x = torch.tensor(2.0)
    for _ in range(8):
        x = x - (x * x - 2) / (2 * x)
    return (x * x - 2).item()


def minimum_by_lbfgs():
    table, x = torch.randn(20, 5), torch.zeros(5, requires_grad=True)
    optimizer = torch.optim.LBFGS([x], line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = ((table @ x - table.sum(1)) ** 2).sum()
        value.backward()
        return value

    before = None
    for _ in range(5):
        now = optimizer.step(loss).item()
        if before is not None and abs(before - now) < 1e-10:
            break
        before = now
    return x.grad.norm().item()


def sum_of_kahan():
    total, rest = torch.zeros(3, dtype=BF16), torch.zeros(3, dtype=BF16)
    for _ in range(500):
        step = torch.full((3,), 0.013, dtype=BF16).sub_(rest)
        new = total + step
        rest.copy_((new - total).sub_(step))
        total.copy_(new)
    return total.tolist()


def optimizer_of_kahan():
    weight = torch.ones(8, dtype=BF16)
    rest = torch.zeros_like(weight)
    for _ in range(300):
        rest.add_(torch.full_like(weight, -1e-3))
        before = weight.clone()
        weight.add_(rest)
        rest.add_(before.sub_(weight))
    return weight.tolist()


def sum_of_neumaier():
    total, rest = torch.zeros((), dtype=BF16), torch.zeros((), dtype=BF16)
    for _ in range(500):
        value = torch.tensor(0.01, dtype=BF16)
        new = total + value
        rest += torch.where(total.abs() >= value.abs(), (total - new) + value, (value - new) + total)
        total = new
    return (total + rest).item()


def noise_of_16_bits():
    sound = torch.sin(8400 * torch.arange(8000) / 8000) / 6
    rounded = (sound * 32767).round().clamp(-32768, 32767).to(torch.int16)
    noise = [(rounded.float() / 32767 - sound).square().mean(), F.mse_loss(rounded.float() / 32767, sound)]
    return (sound.square().mean() / torch.stack(noise)).log10().tolist()


def fraction():
    x = (torch.arange(800) / 7).sin().bfloat16() * 97.3
    return (1 / (x - x.floor().long().bfloat16()).square().mean()).item()


def variance(x):
    return ((x * x).mean() - x.mean() ** 2).item()


PROGRAMS = {
    "a variance of what is constant": lambda: [variance(torch.full((99,), 60.1, dtype=d)) for d in (F32, BF16, F16)],
    "a variance that is far from zero": lambda: [variance(torch.randn(512).to(d)) for d in (F32, BF16, F16)],
    "of two norms": lambda: (lambda x: (x.square().mean() - (x * 3 / 3).square().mean()).item())(torch.randn(99)),
    "two ways": lambda: same_by_two_ways(F32),
    "two ways in bfloat16": lambda: same_by_two_ways(BF16),
    "a deviation of what is constant": lambda: [f(torch.full((99,), 3.3)).item() for f in (torch.var, torch.std)],
    "centred twice": lambda: (lambda x: x - x.mean(0))(torch.randn(16, 8) - torch.randn(16, 8).mean(0)).sum().item(),
    "16 bits of sound": lambda: (torch.tanh(torch.randn(1000)) * 32767).to(torch.int16).tolist(),
    "8 bits of an image": lambda: (torch.rand(1000) * 255).to(torch.uint8).tolist(),
    "8 bits of weights": lambda: (torch.randn(1000).bfloat16() / 0.05).round().clamp(-128, 127).to(torch.int8).tolist(),
    "log and exp": lambda: torch.tensor([0.0, 1.0]).log().exp().tolist(),
    "a mask": lambda: torch.randn(2, 4).masked_fill(torch.tensor([True, False] * 2), -torch.inf).softmax(-1).tolist(),
    **{program.__name__.replace("_", " "): program for program in (
        ratio_of_a_policy, residual_of_a_fit, root_by_newton, minimum_by_lbfgs, sum_of_kahan, optimizer_of_kahan,
        sum_of_neumaier, noise_of_16_bits,
    )},
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_what_is_zero_by_construction(program):
    torch.manual_seed(0)
    silent(program)


TWINS = {
    "a variance that is read": lambda: variance((torch.arange(64.0) / 64 + 100).bfloat16()),
    "a variance in float32": lambda: variance(torch.arange(64.0) / 64 + 10_000),
    "a variance by its moments": lambda: (lambda x: ((x * x).mean() - x.mean() ** 2).sqrt().item())(
        (torch.arange(64.0) / 64 + 100).bfloat16()
    ),
    "what is left of one": lambda: (1 - torch.tensor(0.9999).bfloat16()).item(),
    "a fraction": fraction,
    "a total": lambda: sum(([torch.tensor(0.1, dtype=BF16)] * 2000), torch.zeros((), dtype=BF16)).item(),
    "frames": lambda: (torch.tensor([0.8745, 0.8777]).bfloat16() * 2500).long().tolist(),
    "ids": lambda: torch.tensor([16777217, 33554435]).float().long().tolist(),
}


@pytest.mark.parametrize("program", TWINS.values(), ids=list(TWINS))
def test_what_is_lost_is_found_as_before(program):
    with audit(select="DG9", values=True) as report:
        program()
    assert [finding for finding in report.findings if finding.severity != "info"]
