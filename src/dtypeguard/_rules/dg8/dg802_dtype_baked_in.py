"""DG802 dtype-baked-in."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG802",
    "dtype-baked-in",
    Severity.INFO,
    summary="A trace holds a dtype as a constant, and keeps it when the module is converted.",
    says="the trace holds {baked} as {dtype}{effect}",
    fix=(
        "trace the model in the dtype in which it will run, or derive dtypes in the graph: "
        "`torch.zeros_like`, `.type_as`"
    ),
    why=(
        "Tracing records the dtypes that it sees as constants. A traced module that is converted "
        "afterwards still casts to them."
    ),
    sources=("https://docs.pytorch.org/docs/stable/generated/torch.jit.trace.html",),
)

BAD = [
    Program(
        """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        x = self.layer(x)
        return x + torch.ones(3, dtype=x.dtype)


traced = torch.jit.trace(Net(), torch.rand(2, 3))
y = traced.half()(torch.rand(2, 3).half())
""",
        at=15,
        prints="the trace holds `ones` at program.py:12 as float32, and the module was converted to float16 since",
        severity=Severity.WARNING,
    ),
    Program(
        """\
import torch
from torch import nn


class Mask(nn.Module):
    def forward(self, x, mask):
        return x * mask.to(x.dtype)


x, mask = torch.rand(3), torch.tensor([1.0, 0.0, 1.0])
traced = torch.jit.trace(Mask(), (x, mask))
y = traced(x.bfloat16(), mask.bfloat16())
""",
        at=11,
        prints="the trace holds `to` at program.py:7 as float32, and it was given bfloat16 since",
        severity=Severity.WARNING,
    ),
    Program(
        """\
import torch


def positive(x):
    return (x > 0).to(dtype=x.dtype)


traced = torch.jit.trace(positive, torch.ones(3))
""",
        at=8,
        prints="the trace holds `to` at program.py:5 as float32",
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        x = self.layer(x)
        return x + torch.ones_like(x)


traced = torch.jit.trace(Net(), torch.rand(2, 3))
y = traced.half()(torch.rand(2, 3).half())
"""
    ),
    Program(
        """\
import torch
from torch import nn


class Mask(nn.Module):
    def forward(self, x, mask):
        return x * mask.type_as(x)


x, mask = torch.rand(3), torch.tensor([1.0, 0.0, 1.0])
traced = torch.jit.trace(Mask(), (x, mask))
y = traced(x.bfloat16(), mask.bfloat16())
"""
    ),
    Program(
        """\
import torch


def positive(x):
    return (x > 0).to(dtype=torch.float32)


traced = torch.jit.trace(positive, torch.ones(3))
"""
    ),
]
