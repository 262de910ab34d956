"""DG504 buffer-changes-dtype."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .._kit import Program, Recorder, Rule, Severity, around, size_of
from ._stays import Stays, enter

RULE = Rule(
    "DG504",
    "buffer-changes-dtype",
    Severity.INFO,
    summary="A forward replaced a buffer by a tensor of another dtype.",
    says="{which} of {module} was {was} and became {dtype} in forward{effect}",
    fix="build it in the dtype that it replaces: `.to(self.{name})` or `dtype=self.{name}.dtype`",
    why=("A table that is grown in forward is built anew in the default dtype, whatever the model was converted to."),
    sources=("https://github.com/huggingface/transformers/issues/13665",),
)


@around(nn.Module, "__setattr__", rule=RULE)
def _setattr(audit: Recorder, original: Callable[..., Any], self: nn.Module, name: str, value: Any) -> None:
    if audit.local.modules and isinstance(value, Tensor):
        old = (vars(self).get("_buffers") or {}).get(name)
        if old is not None and old.dtype.is_floating_point and old.dtype is not value.dtype:
            audit.guarded(_replaced, audit, self, name, old.dtype, value)
    original(self, name, value)


def _replaced(audit: Recorder, module: nn.Module, name: str, was: torch.dtype, buffer: Tensor) -> None:
    path, size = audit.path_of(module), size_of(buffer)
    stays = Stays(RULE, "buffer", audit.here(), path, name, "forward", was, buffer.dtype, size)
    enter(audit, stays)
    stays.begin(audit, buffer)


BAD = [
    Program(
        """\
import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(0, 1, 2))

    def forward(self, x):
        if len(x) > len(self.table):
            self.table = torch.linspace(0, 1, len(x))
        return x + self.table[: len(x), None]


model = Positions().half()
out = model(torch.ones(5, 4).half())
""",
        at=12,
        prints="buffer `table` of Positions was float16 and became float32 in forward: float32 met float16 at "
        "program.py:13, in forward",
        severity=Severity.WARNING,
        fix="build it in the dtype that it replaces: `.to(self.table)` or `dtype=self.table.dtype`",
    ),
    Program(
        """\
import torch
from torch import nn


class Scheduler(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("alphas", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0))

    def forward(self, x, t):
        self.alphas = self.alphas.to(x.dtype)
        return self.alphas[t] * x


scheduler = Scheduler()
noisy = scheduler(torch.ones(3).bfloat16(), 0)
""",
        at=11,
        prints="buffer `alphas` of Scheduler was float32 and became bfloat16 in forward",
    ),
    Program(
        """\
import torch
from torch import nn


class Center(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = x.float().mean(0)
        return x - self.mean.to(x.dtype)


model = nn.Sequential(Center()).half()
out = model(torch.ones(5, 4).half())
""",
        at=11,
        prints="buffer `mean` of Sequential.0 was float16 and became float32 in forward",
    ),
]
GOOD = [
    Program("""\
import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.linspace(0, 1, 2))

    def forward(self, x):
        if len(x) > len(self.table):
            self.table = torch.linspace(0, 1, len(x)).to(self.table)
        return x + self.table[: len(x), None]


model = Positions().half()
out = model(torch.ones(5, 4).half())
"""),
    Program("""\
import torch
from torch import nn


class Scheduler(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("alphas", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0))

    def forward(self, x, t):
        alphas = self.alphas.to(x.dtype)
        return alphas[t] * x


scheduler = Scheduler()
noisy = scheduler(torch.ones(3).bfloat16(), 0)
"""),
    Program("""\
import torch
from torch import nn


class Center(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.steps = self.steps + 1
        return x - self.mean


model = Center()
out = model(torch.ones(5, 4))
"""),
]
