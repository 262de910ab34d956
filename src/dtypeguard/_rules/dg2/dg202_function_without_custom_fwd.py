"""DG202 function-without-custom-fwd."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG202",
    "function-without-custom-fwd",
    Severity.ERROR,
    summary="An autograd function ran under autocast without `custom_fwd`, so two dtypes meet in its backward.",
    says="autograd.Function `{name}` ran under autocast without `custom_fwd`; {detail}",
    fix=(
        "decorate it: `@torch.amp.custom_fwd(device_type={device!r}, cast_inputs=torch.float32)` on "
        "forward, `@torch.amp.custom_bwd(device_type={device!r})` on backward"
    ),
    why=(
        "Autocast casts inside the forward of a Function, but backward runs outside of any region, on "
        "saved tensors of the dtypes that came in and a gradient of the dtype that went out."
    ),
    sources=(
        "https://github.com/pytorch/pytorch/issues/47906",
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#functions-with-multiple-inputs-or-autocastable-ops",
    ),
)


BAD = [
    Program(
        """\
import torch
from torch.autograd import Function


class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x


x, weight = torch.randn(2, 4), torch.randn(3, 4, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = Linear.apply(x, weight)
y.sum().backward()
""",
        at=19,
        prints="autograd.Function `Linear` ran under autocast without `custom_fwd`; its backward failed at "
        "program.py:14, in backward: expected m1 and m2 to have the same dtype, but got: c10::BFloat16 != "
        "float",
    ),
    Program(
        """\
import torch
import torch.nn.functional as F
from torch.autograd import Function


class FusedLoss(Function):
    @staticmethod
    def forward(ctx, hidden, head, target):
        logits = hidden @ head.t()
        ctx.save_for_backward(hidden, head, target, logits)
        return F.cross_entropy(logits.float(), target)

    @staticmethod
    def backward(ctx, grad):
        hidden, head, target, logits = ctx.saved_tensors
        d = logits.softmax(-1) - F.one_hot(target, 3)
        return d @ head, d.t() @ hidden, None


hidden, head = torch.randn(2, 4), torch.randn(3, 4, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = FusedLoss.apply(hidden, head, torch.tensor([0, 2]))
loss.backward()
""",
        at=22,
        prints="autograd.Function `FusedLoss` ran under autocast without `custom_fwd`; its backward failed at "
        "program.py:17, in backward: expected m1 and m2 to have the same dtype, but got: c10::BFloat16 != "
        "float",
    ),
    Program(
        """\
import torch
from torch.autograd import Function


class Similarity(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ x.t()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (grad + grad.t()).sum(1, keepdim=True) * x


x = torch.randn(2, 4, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = Similarity.apply(x)
y.float().sum().backward()
""",
        at=19,
        prints="autograd.Function `Similarity` ran under autocast without `custom_fwd`; its backward mixes "
        "bfloat16 and float32 at program.py:14, in backward",
        severity=Severity.INFO,
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function


class Linear(Function):
    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x


x, weight = torch.randn(2, 4), torch.randn(3, 4, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = Linear.apply(x, weight)
y.sum().backward()
"""
    ),
    Program(
        """\
import torch
from torch.autograd import Function


class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = grad.to(x.dtype)
        return grad @ weight, grad.t() @ x


x, weight = torch.randn(2, 4), torch.randn(3, 4, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = Linear.apply(x, weight)
y.sum().backward()
"""
    ),
    Program(
        """\
import torch
from torch import nn
from torch.autograd import Function


class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * s * (1 + x * (1 - s))


model = nn.Linear(4, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = Swish.apply(model(torch.randn(2, 4)))
y.float().sum().backward()
"""
    ),
]
