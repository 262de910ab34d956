"""DG110 dtype-refused."""

from ..._watch.rule import Program, Rule, Severity

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
]
