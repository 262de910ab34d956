"""DG110 dtype-refused."""

import re
from collections.abc import Callable

import torch

from ..._watch.events import Operand
from .._kit import Program, Rule, Severity, name_of
from .._refusals import Refused, Turn, explains

RULE = Rule(
    "DG110",
    "dtype-refused",
    Severity.ERROR,
    summary="PyTorch refuses an operand for its dtype.",
    says="`{what}` was refused: {reason}{operands}",
    fix="cast the operand that is odd: {advice}",
    why="PyTorch's message names neither the argument nor where its dtype comes from.",
    sources=(
        "https://github.com/pytorch/pytorch/issues/105243",
        "https://github.com/pytorch/pytorch/issues/102922",
    ),
)


def _indices(it: Refused) -> list[Operand]:
    """What is no index: integers that are too narrow, or floats where an index is."""
    narrow = [o for o in it.integers if o.dtype not in (torch.int64, torch.bool)]
    return narrow or [o for o in it.operands if o.dtype.is_floating_point and not o.held][-1:]


def _conditions(it: Refused) -> list[Operand]:
    return [o for o in it.integers if o.dtype is not torch.bool]


# What PyTorch says, what to write, and which operands are to blame where it is not the odd one out.
_SAYS: tuple[tuple[str, str, Callable[[Refused], list[Operand]]], ...] = (
    (
        r"result type \w+ can't be cast",
        "an integer tensor takes no fractions: leave it out, or `.round().to(dtype)` where it is meant",
        lambda it: it.odd,
    ),
    (r"dtype Long but expected (Float|Double)", "`.to(torch.float32)` on the targets", lambda it: it.integers),
    (r"to be a boolean tensor|boolean masks", "`.bool()` on the condition or mask", _conditions),
    (
        r"as indices must be|for index|Long but (got|found)|scalar types: Long|be Long or|LongTensor"
        r"|expected scalar type Long",
        "`.long()` on the indices or class targets",
        _indices,
    ),
    (r"bool tensor", "`~mask` in place of `1 - mask`, or `mask.float()`", lambda it: it.odd),
)


@explains(Turn.MESSAGE)
def integers_refused(it: Refused) -> bool:
    for says, advice, blamed in _SAYS:
        if re.search(says, it.event.reason):
            return it.tell(RULE, blamed(it), advice=advice)
    return False


@explains(Turn.DTYPE)
def refused(it: Refused) -> bool:
    """Operands of several dtypes, and nothing else."""
    if len(it.floats) == 1 and it.integers:
        return it.tell(RULE, it.integers, advice=f"`.to(torch.{name_of(next(iter(it.floats)))})`")
    if len(it.operands) == 1:
        return it.tell(RULE, advice="`.float()` first")
    like = next((name_of(o.dtype) for o in it.operands if o not in it.odd), None)
    advice = f"`.to(torch.{like})`" if like else "cast one side to the dtype of the other"
    if like and it.odd[0].held:
        other = f"what it gets: `.to(torch.{name_of(it.odd[0].dtype)})`"
        advice = f"convert the layer like its model, {advice}, or {other}"
    return it.tell(RULE, advice=advice)


BAD = [
    Program(
        """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).half()
images = torch.rand(3, 4)
model(images)
""",
        at=6,
        prints="`model(images)` was refused: mat1 and mat2 must have the same dtype, but got Float and Half; "
        "`operand 1` = f32[3,4] on cpu (torch.rand(3, 4) at program.py:5, in <module>: float32)",
        fix="cast the operand that is odd: `.to(torch.float16)`",
    ),
    Program(
        """\
import torch
from torch import nn

embedding = nn.Embedding(10, 4)
tokens = torch.tensor([1.0, 2.0, 5.0])
embedding(tokens)
""",
        at=6,
        prints="`embedding(tokens)` was refused: Expected tensor for argument #1 'indices' to have one of the "
        "following scalar types: Long, Int; but got torch.FloatTensor instead (while checking arguments "
        "for embedding); `operand 1` = f32[3] on cpu (torch.tensor([1.0, 2.0, 5.0]) at program.py:5, in "
        "<module>: float32)",
    ),
    Program(
        """\
import torch
import torch.nn.functional as F

probabilities = torch.rand(3)
labels = torch.tensor([0, 1, 1])
F.binary_cross_entropy(probabilities, labels)
""",
        at=6,
        prints="`F.binary_cross_entropy(probabilities, labels)` was refused: Found dtype Long but expected Float; "
        "`operand 1` = i64[3] on cpu (torch.tensor([0, 1, 1]) at program.py:5, in <module>: int64)",
    ),
    Program(
        """\
import torch
from torch import nn


class SumConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)

    def forward(self, x, edge_index):
        source, target = edge_index
        messages = self.lin(x)[source.long()]
        index = target[:, None].expand(-1, 2)
        return torch.zeros_like(x).scatter_add(0, index, messages)


edge_index = torch.tensor([[0, 1, 2], [1, 2, 0]], dtype=torch.int16)
SumConv()(torch.randn(3, 2), edge_index)
""",
        at=14,
        prints="`torch.zeros_like(x).scatter_add(0, index, messages)` was refused: scatter(): Expected dtype "
        "int32/int64 for index; `operand 1` = i16[3,2] on cpu (torch.tensor([[0, 1, 2], [1, 2, 0]], "
        "dtype=torch.int16) at program.py:17, in <module>: int16)",
    ),
    Program(
        """\
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(8, 24).bfloat16()
mask = torch.zeros(3, 3, dtype=torch.float16)
q, k, v = model(torch.randn(1, 3, 8, dtype=torch.bfloat16)).chunk(3, -1)
F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
""",
        at=8,
        prints="`F.scaled_dot_product_attention(q, k, v, attn_mask=mask)` was refused: Expected attn_mask dtype "
        "to be bool or float or to match query dtype, but got attn_mask.dtype: c10::Half and  query.dtype: "
        "c10::BFloat16 instead.; `mask` = f16[3,3] on cpu (torch.zeros(3, 3, dtype=torch.float16) at "
        "program.py:6, in <module>: float16)",
    ),
    Program(
        """\
import torch

labels = torch.tensor([0, 1, 1])
accuracy = labels.mean()
""",
        at=4,
        prints="`labels.mean()` was refused: mean(): could not infer output dtype. Input dtype must be either a "
        "floating point or complex dtype. Got: Long; `operand 0` = i64[3] on cpu (torch.tensor([0, 1, 1]) "
        "at program.py:3, in <module>: int64)",
    ),
    Program(
        """\
import torch
from torch import nn

model, nodes = nn.Linear(4, 2), torch.zeros(2, 2)
target = torch.tensor([0, 0, 1], dtype=torch.int16)
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    messages = model(torch.randn(3, 4)).float()
    nodes.index_add_(0, target, messages)
""",
        at=8,
        prints="`nodes.index_add_(0, target, messages)` was refused: index_add_(): Expected dtype int32/int64 for "
        "index but got: Short; `operand 1` = i16[3] on cpu (torch.tensor([0, 0, 1], dtype=torch.int16) at "
        "program.py:5, in <module>: int16)",
    ),
    Program(
        """\
import torch

scores = torch.randn(2, 3)
padding = torch.tensor([[0, 0, 1], [0, 1, 1]])
scores = scores.masked_fill(padding, float("-inf"))
""",
        at=5,
        prints='`scores.masked_fill(padding, float("-inf"))` was refused: masked_fill_ only supports boolean '
        "masks, but got mask with dtype long int; `operand 1` = i64[2,3] on cpu (torch.tensor([[0, 0, 1], "
        "[0, 1, 1]]) at program.py:4, in <module>: int64)",
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).half()
images = torch.rand(3, 4)
model(images.to(torch.float16))
"""
    ),
    Program(
        """\
import torch
from torch import nn

embedding = nn.Embedding(10, 4)
tokens = torch.tensor([1, 2, 5])
embedding(tokens)
"""
    ),
    Program(
        """\
import torch

x = torch.randn(2, 3)
y = x @ x
"""
    ),
    Program(
        """\
import torch


def step(x):
    if x.dtype is not torch.float32:
        raise TypeError(f"expected dtype float32, got {x.dtype}")


step(torch.ones(2).double())
"""
    ),
    Program(
        """\
import torch

scores = torch.randn(2, 3)
padding = torch.tensor([[0, 0, 1], [0, 1, 1]])
scores = scores.masked_fill(padding.bool(), float("-inf"))
"""
    ),
]
