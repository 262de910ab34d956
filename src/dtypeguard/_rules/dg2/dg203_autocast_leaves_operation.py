"""DG203 autocast-leaves-operation."""

import re

from .._kit import HALF, Program, Rule, Severity
from .._refusals import Refused, Turn, explains

RULE = Rule(
    "DG203",
    "autocast-leaves-operation",
    Severity.ERROR,
    summary="Under autocast, an operation that it does not cast for gets half and float32 operands, and refuses them.",
    says="`{what}` under autocast was refused: {reason}",
    fix="cast one side: {advice}",
    why=(
        "Autocast casts the operands of the operations on its lists. Writing by index, scattering and most "
        "factories are on none: a float32 canvas does not take half predictions."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference",
        "https://github.com/open-mmlab/mmdetection3d/issues/1842",
    ),
)


_BY_INDEX = re.compile(
    r"Index put|index_put|scatter|index_add|index_copy|masked_scatter|torch\.cat|Expected self\.dtype"
)


@explains(Turn.AUTOCAST)
def refused(it: Refused) -> bool:
    if not it.event.autocast:
        return False
    if _BY_INDEX.search(it.event.reason) and it.floats & HALF:
        advice = "make the target like the values: `values.new_zeros(...)`, or cast: `values.to(target.dtype)`"
        return it.tell(RULE, advice=advice)
    advice = "`.float()` on what autocast made half, or `.to(x.dtype)` on the other"
    return bool(it.autocasts) and it.tell(RULE, advice=advice)


BAD = [
    Program(
        """\
import torch
from torch import nn


class Scatter(nn.Module):
    def __init__(self):
        super().__init__()
        self.pfn = nn.Linear(3, 2)

    def forward(self, pillars, index):
        canvas = torch.zeros(6, 2)
        canvas[index] = self.pfn(pillars)
        return canvas


with torch.autocast("cpu", dtype=torch.bfloat16):
    Scatter()(torch.randn(3, 3), torch.tensor([0, 2, 5]))
""",
        at=12,
        prints="`canvas[index] = self.pfn(pillars)` under autocast was refused: Index put requires the source and "
        "destination dtypes match, got Float for the destination and BFloat16 for the source.",
        fix=(
            "cast one side: make the target like the values: `values.new_zeros(...)`, or cast: "
            "`values.to(target.dtype)`"
        ),
    ),
    Program(
        """\
import torch
from torch import nn

embedding, vision = nn.Embedding(10, 2), nn.Linear(4, 2)
image_token = torch.tensor([True, False, True])
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    tokens = embedding(torch.tensor([9, 3, 9]))
    features = vision(torch.randn(2, 4))
    tokens.masked_scatter_(image_token[:, None], features)
""",
        at=9,
        prints="`tokens.masked_scatter_(image_token[:, None], features)` under autocast was refused: "
        "masked_scatter: expected self and source to have same dtypes but gotFloat and BFloat16",
    ),
    Program(
        """\
import torch
from torch import nn

model, target = nn.Linear(4, 2), torch.tensor([0, 0, 1])
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    nodes = torch.zeros(2, 2)
    nodes.index_add_(0, target, model(torch.randn(3, 4)))
""",
        at=7,
        prints="`nodes.index_add_(0, target, model(torch.randn(3, 4)))` under autocast was refused: index_add_(): "
        "self (Float) and source (Half) must have the same scalar type",
    ),
    Program(
        """\
import torch
from torch import nn

model = nn.Linear(4, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    h = model(torch.randn(2, 4))
    average = torch.lerp(h, torch.zeros(2, 4), 0.1)
""",
        at=7,
        prints="`torch.lerp(h, torch.zeros(2, 4), 0.1)` under autocast was refused: expected dtype c10::BFloat16 "
        "for `end` but got dtype float",
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn


class Scatter(nn.Module):
    def __init__(self):
        super().__init__()
        self.pfn = nn.Linear(3, 2)

    def forward(self, pillars, index):
        values = self.pfn(pillars)
        canvas = values.new_zeros(6, 2)
        canvas[index] = values
        return canvas


with torch.autocast("cpu", dtype=torch.bfloat16):
    Scatter()(torch.randn(3, 3), torch.tensor([0, 2, 5]))
"""
    ),
    Program(
        """\
import torch
from torch import nn

model, target = nn.Linear(4, 2), torch.tensor([0, 0, 1])
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    nodes = torch.zeros(2, 2)
    nodes.index_add_(0, target, model(torch.randn(3, 4)).to(nodes.dtype))
"""
    ),
    Program(
        """\
import torch
from torch import nn

model, x = nn.Linear(4, 4), torch.randn(2, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    h = model(x)
    both = torch.cat([x, h])
    out = torch.zeros(2, 4)
    out[:1] = h[:1]
"""
    ),
]
