"""DG602 default-dtype-leaked."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..._watch.lineage import Cause
from .._kit import Node, Program, Recorder, Rule, Severity, Site, around, name_of

RULE = Rule(
    "DG602",
    "default-dtype-leaked",
    Severity.ERROR,
    summary="The default dtype was changed and not set back, and what was made from it met tensors of another.",
    says=(
        "the default dtype is {dtype} since this line ({was} before), and what is made from it met other "
        "dtypes: {effect}"
    ),
    fix=("set it back (`try: ... finally: torch.set_default_dtype(torch.{was})`), or give `dtype=` to the factories"),
    why=(
        "`torch.set_default_dtype` holds for the whole process. A library that sets it changes what "
        "`linspace`, `zeros` and every new layer give in all programs that use it."
    ),
    sources=(
        "https://github.com/ACEsuit/mace/issues/328",
        "https://docs.pytorch.org/docs/stable/generated/torch.set_default_dtype.html",
    ),
)


@dataclass(eq=False)
class Leak(Cause):
    """The default dtype was changed here."""

    site: Site
    was: torch.dtype
    dtype: torch.dtype
    said: bool = False

    def blame(self, audit: Recorder, effect: str) -> None:
        if not self.said and (self.met or self in audit.births.values()):  # a loader that sets it back is no leak
            self.said = True
            facts = {"dtype": name_of(self.dtype), "was": name_of(self.was), "effect": effect}
            audit.find(
                RULE, self.site, op="torch.set_default_dtype", facts=facts, from_dtype=self.was, to_dtype=self.dtype
            )


@around(nn.Module, "register_parameter", rule=RULE)
def _registration(audit: Recorder, original: Callable[..., Any], self: nn.Module, name: str, param: Any) -> None:
    """Parameters are made past the dispatcher."""
    original(self, name, param)
    cause = audit.births.get(param.dtype) if audit.births and isinstance(param, Tensor) else None
    if cause is not None:
        title = f"parameter {type(self).__name__}.{name}"
        node = audit.guarded(lambda: Node(title, audit.here(), param.dtype, cause=cause, named=True))
        audit.guarded(audit.lineage.hold, self, name, param, node)


@around(torch, "set_default_dtype", "set_default_tensor_type", rule=RULE)
def _default(audit: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    was = torch.get_default_dtype()
    result = original(*args, **kwargs)
    dtype = torch.get_default_dtype()
    if dtype is not was:
        for leak in [cause for cause in audit.births.values() if isinstance(cause, Leak)]:
            was = leak.was
            del audit.births[leak.dtype]
        if dtype is not was:  # else it is set back
            audit.births[dtype] = Leak(audit.here(), was, dtype)
    return result


BAD = [
    Program(
        """\
import torch
from torch import nn


class Potential(nn.Module):
    def forward(self, charges):
        grid = torch.linspace(0, 1, 3)
        return charges[:, None] * grid


def calculator():
    torch.set_default_dtype(torch.float64)
    return Potential()


energy = calculator()(torch.tensor([1.0, 2.0], dtype=torch.float32))
""",
        at=12,
        prints="the default dtype is float64 since this line (float32 before), and what is made from it met "
        "other dtypes: float64 met float32 at program.py:8, in forward",
        fix=(
            "set it back (`try: ... finally: torch.set_default_dtype(torch.float32)`), or give `dtype=` to "
            "the factories"
        ),
    ),
    Program(
        """\
import torch


def load(name):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    weights = torch.load(name)
    torch.set_default_dtype(before)
    return weights


x = torch.ones(3)
try:
    weights = load("weights.pt")
except FileNotFoundError:
    weights = torch.zeros(3)
y = x * weights
""",
        at=6,
        prints="the default dtype is float64 since this line (float32 before), and what is made from it met "
        "other dtypes: float64 met float32 at program.py:17, in <module>",
    ),
    Program(
        """\
import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.factor


batch = torch.ones(2, 3)
torch.set_default_dtype(torch.float64)
out = Scale()(batch)
""",
        at=15,
        prints="the default dtype is float64 since this line (float32 before), and what is made from it met "
        "other dtypes: float64 met float32 at program.py:11, in forward",
    ),
]
GOOD = [
    Program("""\
import torch
from torch import nn


class Potential(nn.Module):
    def forward(self, charges):
        grid = torch.linspace(0, 1, 3)
        return charges[:, None] * grid


def calculator():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        table = torch.eye(3).inverse()
    finally:
        torch.set_default_dtype(before)
    return Potential()


energy = calculator()(torch.tensor([1.0, 2.0], dtype=torch.float32))
"""),
    Program("""\
import torch
from torch import nn

torch.set_default_dtype(torch.float64)
model = nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 3)).square().mean().backward()
optimizer.step()
"""),
    Program("""\
import torch

x = torch.ones(3)
torch.set_default_dtype(torch.float64)
grid = torch.linspace(0, 1, 3, dtype=x.dtype)
y = x * grid
"""),
]
