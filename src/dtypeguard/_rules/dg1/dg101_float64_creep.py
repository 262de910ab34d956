"""DG101 float64-creep."""

from typing import Any

import torch

from ..._watch.lineage import FIRST
from ..._watch.text import operand
from .._kit import Node, Op, Program, Recorder, Rule, Severity, name_of, on
from .._refusals import Refused, Turn, explains
from ._promotions import Promoted, open_promotions, rows, tell

RULE = Rule(
    "DG101",
    "float64-creep",
    Severity.WARNING,
    summary="A float64 operand makes everything that it meets float64, or a layer refuses it.",
    says="`{what}` {how} float64 and {other}{size}",
    fix="convert where the float64 is born: {advice}",
    why=(
        "NumPy and Python compute in float64, models in float32 or less. One float64 operand makes every "
        "result float64: twice the memory and a fraction of the speed on a GPU, nothing at all on MPS; a "
        "layer refuses it. Where all that comes of it is cast back, it is an info: nothing leaves in float64, but the "
        "time and the memory are lost all the same."
    ),
    at_birth=True,
    sources=(
        "https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
        "https://github.com/pytorch/pytorch/issues/36553",
        "https://github.com/sgl-project/sglang/issues/29011",
    ),
)


@on("after", RULE, ops="add_ sub_ copy_ lerp_ addcmul_ addcdiv_ index_add_ scatter_add_ index_put_".split())
def gathered(event: Op, audit: Recorder) -> None:
    """`mean += (x - mean) / n`: nothing comes of it but what somebody keeps in float64 on purpose."""
    if audit.promotions and event.inputs[0].dtype is torch.float64:
        node = audit.lineage.get(event.inputs[0])
        for tensor in event.inputs[1:] if node is not None and _was_made_so(node) else ():
            for promoted in open_promotions(tensor, audit, torch.float64):
                promoted.row.gathered += 1
                promoted.close()


def _was_made_so(node: Node) -> bool:
    """Whether somebody asked for its dtype: it came neither from NumPy's data, nor from a promotion or its results."""
    birth = node.birth
    promoted = isinstance(birth.cause, Promoted) or any(isinstance(debt, Promoted) and debt.open for debt in node.debts)
    return not promoted and (birth.op != "tensor" or "dtype" in birth.site.written)


@on("end", RULE)
def judge(audit: Recorder) -> None:
    for row in rows(audit):
        if row.creeps:
            tell(RULE, row, audit, **_creep(row.nodes, row.narrow))


@explains(Turn.FLOAT64)
def refused(it: Refused) -> bool:
    """float64 that is not what the model is in."""
    if torch.float64 not in it.floats or len(it.floats) < 2 or it.models is torch.float64:
        return False
    nodes = tuple(o.node for o in it.odd if o.node is not None and o.dtype is torch.float64)
    narrow = it.models or min(it.floats, key=lambda dtype: dtype.itemsize)
    facts = {**_creep(nodes, narrow), "how": "was refused: it mixes"}
    doubles = [o for o in it.odd if o.dtype is torch.float64]
    kept = [o for o in doubles if o.owned or (o.node is not None and o.node.named)]  # by a module: no argument is wrong
    return it.tell(RULE, **facts, size="".join(f"; {o}" for o in kept))


def _creep(nodes: tuple[Node, ...], other: torch.dtype) -> dict[str, Any]:
    """The facts of DG101."""
    birth = nodes[0].birth if nodes else None
    cast = f".to(torch.{name_of(other if other.is_floating_point else torch.float32)})"
    if birth is None or birth.op == FIRST:
        advice = f"`{cast}`"
    elif birth.named:
        advice = f"`{birth.op.partition(' ')[2]}{cast}`"
    elif loop := birth.site.loop:  # what it draws is born there, which is no tensor
        how = f"`{loop} = {loop}{cast}`" if loop.isidentifier() else f"`{cast}` on what is float64 of `{loop}`"
        advice = f"in the data set, or {how} at the top of the loop"
    else:
        advice = f"`{operand(birth.site.expression)}{cast}`"
    return {"how": "mixes", "other": name_of(other), "advice": advice}


BAD = [
    Program(
        """\
import numpy as np
import torch

images = torch.rand(2, 3, 4, 4)
mean = torch.from_numpy(np.array([0.485, 0.456, 0.406]))
images = images - mean[:, None, None]
""",
        at=6,
        prints="`images - mean[:, None, None]` mixes float64 and float32, 768 B",
        fix=(
            "convert where the float64 is born: `torch.from_numpy(np.array([0.485, 0.456, 0.406])).to(torch.float32)`"
        ),
    ),
    Program(
        """\
import numpy as np
import torch


class Schedule:
    def __init__(self):
        self.sigmas = torch.from_numpy(np.linspace(1.0, 0.0, 10))

    def add_noise(self, latents, noise, step):
        sigma = self.sigmas[step][:, None]
        return latents + sigma * noise


latents, noise = torch.randn(2, 3).half(), torch.randn(2, 3).half()
latents = Schedule().add_noise(latents, noise, torch.tensor([1, 5]))
""",
        at=11,
        prints="`sigma * noise` mixes float64 and float16, 48 B",
    ),
    Program(
        """\
import numpy as np
import torch
from torch import nn


class Encoding(nn.Module):
    def __init__(self):
        super().__init__()
        angles = np.arange(16)[:, None] / 10000 ** (np.arange(8) / 8)
        self.table = torch.from_numpy(np.sin(angles))

    def forward(self, x):
        return x + self.table[: x.shape[1]]


y = Encoding()(torch.randn(2, 5, 8))
""",
        at=13,
        prints="`x + self.table[: x.shape[1]]` mixes float64 and float32, 640 B",
    ),
    Program(
        """\
import numpy as np
import torch
from torch import nn

rows = np.ones((3, 4))
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
model(torch.from_numpy(rows))
""",
        at=7,
        prints="`model(torch.from_numpy(rows))` was refused: it mixes float64 and float32",
        severity=Severity.ERROR,
    ),
    Program(
        """\
import numpy as np
import torch

canvas, index = torch.zeros(6), torch.tensor([0, 2, 5])
depth = torch.from_numpy(np.linspace(1.0, 4.0, 3))
with torch.autocast("cpu", dtype=torch.bfloat16):
    canvas[index] = depth
""",
        at=7,
        prints="`canvas[index] = depth` was refused: it mixes float64 and float32",
        severity=Severity.ERROR,
    ),
    Program(
        """\
import numpy as np
import torch
from torch import nn

counts = np.array([5.0, 1.0, 2.0])
criterion = nn.CrossEntropyLoss(weight=torch.from_numpy(counts.sum() / counts))
logits, labels = torch.ones(4, 3), torch.tensor([0, 1, 2, 1])
loss = criterion(logits, labels)
""",
        at=8,
        prints="`criterion(logits, labels)` was refused: it mixes float64 and float32; `CrossEntropyLoss.weight` = "
        "f64[3] on cpu (torch.from_numpy(counts.sum() / counts) at program.py:6, in <module>: float64)",
        fix=("convert where the float64 is born: `torch.from_numpy(counts.sum() / counts).to(torch.float32)`"),
        severity=Severity.ERROR,
    ),
]
GOOD = [
    Program(
        """\
import numpy as np
import torch

images = torch.rand(2, 3, 4, 4)
mean = torch.from_numpy(np.array([0.485, 0.456, 0.406])).to(torch.float32)
images = images - mean[:, None, None]
"""
    ),
    Program(
        """\
import torch

total = torch.zeros((), dtype=torch.float64)
for step in range(4):
    loss = torch.randn(8).square().mean()
    total += loss
average = total.item() / 4
"""
    ),
    Program(
        """\
import numpy as np
import torch
from torch import nn

rows = torch.from_numpy(np.ones((3, 4)))
model = nn.Linear(4, 1).double()
loss = (model(rows) - torch.ones(3, 1, dtype=torch.float64)).square().mean()
loss.backward()
"""
    ),
    Program(
        """\
import numpy as np
import torch

x = torch.randn(4)
y = x * np.float64(0.5) / np.sqrt(8.0)
z = y + torch.tensor(2.0, dtype=torch.float64)
"""
    ),
]
