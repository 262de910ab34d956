"""DG201 to DG206 of an audit: what autocast leads to."""

import functools

import pytest
import torch
import torch.nn.functional as F
from audit_cases import Cases, it_is_found, nothing_is_found
from support import BF16, F16, F32
from torch import nn
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function

from dtypeguard import audit

BUGS, HEALTHY = Cases(), Cases()


@pytest.mark.parametrize("case", BUGS, ids=str)
def test_a_fault_around_autocast_is_found_at_its_line(case):
    it_is_found(case)


@pytest.mark.parametrize("case", HEALTHY, ids=str)
def test_a_healthy_use_of_autocast_gives_no_warning(case):
    nothing_is_found(case)


def autocast(dtype=BF16, **options):
    return torch.autocast("cpu", dtype=dtype, **options)


# ---------------------------------------------------------------- DG201: half leaves the region


@BUGS.add(
    "DG201", "return head(normed)", severity="error", from_dtype=BF16, to_dtype=F32, origin=["fc(torch.randn(2, 4))"]
)
def a_norm_stands_between_the_region_and_the_layer():
    fc, norm, head = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)
    with autocast():
        h = fc(torch.randn(2, 4))
    normed = norm(h)
    return head(normed)


# ---------------------------------------------------------------- DG202: functions without custom_fwd


class Similarity(Function):
    """Its backward is elementwise, so that it promotes where another would fail."""

    @staticmethod
    def forward(ctx, x, scale):
        out = x @ x.t()
        ctx.save_for_backward(x, scale, out)
        return out * 2

    @staticmethod
    def backward(ctx, grad):
        x, scale, _ = ctx.saved_tensors
        return (grad.sum(1, keepdim=True) * x) * 4, scale * 0


@BUGS.add("DG202", "y = Similarity.apply(x, x)", severity="info")
def a_function_promotes_in_backward():
    x = torch.randn(2, 4, requires_grad=True)
    with autocast():
        y = Similarity.apply(x, x)
    y.float().sum().backward()
    return x.grad


def contiguous(function):
    """What libraries of kernels put around forward and backward."""

    @functools.wraps(function)
    def wrapper(ctx, *args):
        return function(ctx, *(a.contiguous() if isinstance(a, torch.Tensor) else a for a in args))

    return wrapper


class Wrapped(Similarity):
    forward = staticmethod(contiguous(custom_fwd(Similarity.forward, device_type="cpu")))
    backward = staticmethod(contiguous(custom_bwd(Similarity.backward, device_type="cpu")))


@HEALTHY.add()
def a_decorated_function_is_wrapped():
    x = torch.randn(2, 4, requires_grad=True)
    with autocast():
        y = Wrapped.apply(x, x)
    y.float().sum().backward()
    return x.grad


class FusedNorm(Function):
    """Computes in float32 and saves its statistics so; half goes in, half comes out, in both directions."""

    @staticmethod
    def forward(ctx, x, weight):
        h = x.float()
        scale = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, scale)
        return (h * scale * weight).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        g = grad * weight
        dx = (g - normed * (g * normed).mean(-1, keepdim=True)) * scale
        return dx.to(x.dtype), (grad * normed).sum(0).to(weight.dtype)


class FusedLoss(Function):
    """Computes its gradients in forward; backward has only to scale them."""

    @staticmethod
    def forward(ctx, hidden, head, target):
        logits = (hidden @ head.t()).float()
        d = logits.softmax(-1)
        d[torch.arange(len(target)), target] -= 1
        d = d / len(target)
        ctx.save_for_backward(d @ head, d.t() @ hidden)
        return F.cross_entropy(logits, target)

    @staticmethod
    def backward(ctx, grad):
        hidden, head = ctx.saved_tensors
        return hidden * grad, head * grad, None


@HEALTHY.add()
def a_fused_loss_scales_its_gradients():
    hidden, head = torch.randn(2, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    with autocast():
        loss = FusedLoss.apply(hidden, head, torch.tensor([0, 2]))
    loss.backward()
    return hidden.grad, head.grad


@HEALTHY.add()
def autocast_is_switched_on_for_good():
    fc, x = nn.Linear(4, 4), torch.randn(2, 4)
    torch.set_autocast_dtype("cpu", BF16)
    torch.set_autocast_enabled("cpu", True)
    try:
        return x + fc(x)
    finally:
        torch.set_autocast_enabled("cpu", False)
        torch.clear_autocast_cache()


@HEALTHY.add()
def a_fused_norm_in_a_half_model():
    x, weight = torch.randn(2, 4, dtype=BF16, requires_grad=True), nn.Parameter(torch.ones(4))
    FusedNorm.apply(x, weight).float().square().sum().backward()
    return weight.grad, x.grad


# ---------------------------------------------------------------- DG203: operations that autocast leaves alone


@HEALTHY.add()
def operations_that_cast_by_themselves():
    fc, x = nn.Linear(4, 4), torch.randn(2, 4)
    with autocast():
        h = fc(x)
        out = torch.zeros(2, 4)
        out[:1] = h[:1]
        out.copy_(h)
        return out, torch.cat([x, h]), torch.stack([x, h]), x + h, torch.where(x > 0, x, h), F.pad(h, (0, 1))


# ---------------------------------------------------------------- DG204: see tests/cuda; the CPU has no such list


# ---------------------------------------------------------------- DG205: autocast does not cast for everybody


@HEALTHY.add()
def a_program_refuses_for_reasons_of_its_own():
    def step(x):
        raise ValueError("loss is nan at step 3")

    with autocast():
        return step(torch.randn(3) + 1)


@HEALTHY.add()
def a_file_in_fp16_is_not_found():
    def load(x):
        raise RuntimeError("the fp16 checkpoint is not there")

    with autocast():
        return load(torch.randn(3) + 1)


# ---------------------------------------------------------------- DG206: a constant that does not fit


@BUGS.add("DG206", "scores[:, 0].fill_(-1e9)", severity="error", from_dtype=F16, origin=["torch.randn(2, 2).half()"])
def a_column_of_half_scores_is_filled():
    scores = torch.randn(2, 2).half()
    scores[:, 0].fill_(-1e9)
    return scores


@HEALTHY.add()
def a_refused_fill_is_handled():
    scores = torch.randn(2).half()
    try:
        scores.fill_(-1e9)
    except RuntimeError:
        scores.fill_(torch.finfo(F16).min)
    return scores


def test_a_region_that_a_function_leaves_open_is_told():
    """It may be meant for the whole program; a context manager of the program's own leaves it."""
    amp, linear = torch.autocast("cpu", dtype=BF16), nn.Linear(4, 4)

    class Half:
        def __enter__(self):
            amp.__enter__()

        def __exit__(self, *error):
            amp.__exit__(*error)

    half = Half()
    try:
        with audit(select="DG209") as report:
            half.__enter__()
            linear(torch.ones(3, 4))
    finally:
        half.__exit__(None, None, None)
    assert [
        (finding.severity, "in function `__enter__` is open to the end" in finding.message)
        for finding in report.findings
    ] == [("info", True)]
    with audit(select="DG209") as report, half:
        linear(torch.ones(3, 4))
    assert report.findings == []


def test_a_region_that_is_left_open_and_spoils_values_is_a_warning():
    amp, linear = torch.autocast("cpu", dtype=F16), nn.Linear(3, 3)

    def embed(x):
        amp.__enter__()
        return linear(x).float()

    try:
        with audit(values=True) as report:
            phi = 30 * torch.ones(200, 3) + 0 * embed(torch.ones(200, 3))
            (phi.T @ phi).tolist()
    finally:
        amp.__exit__(None, None, None)
    (found,) = [finding for finding in report.findings if finding.rule == "DG209"]
    assert found.severity == "warning"
    assert "spoils values" in found.message
    assert any("autocast is on there since" in finding.fix + finding.message for finding in report.findings)
