"""DG108 positions-collide."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG108",
    "positions-collide",
    Severity.WARNING,
    summary="Positions or other integers are kept in a half dtype, where neighbours become equal.",
    says="`{what}`: {detail}{effect}",
    fix="compute positions and angles in float32 (or as integers), and cast only the result",
    why=(
        "bfloat16 has 8 bits of significand, float16 has 11: integers above 256 and 2048 are rounded, so "
        "neighbouring positions become equal, and the sine of a large angle is noise."
    ),
    sources=("https://github.com/huggingface/transformers/issues/25681",),
)

BAD = [
    Program(
        """\
import torch

x = torch.zeros(1, 600, 4).bfloat16()
positions = torch.arange(x.shape[1], dtype=x.dtype)
angles = positions[:, None] * torch.tensor([1.0, 0.1]).to(x.dtype)
table = angles.cos()
""",
        at=4,
        prints="`torch.arange(x.shape[1], dtype=x.dtype)`: 600 distinct integers, 407 in bfloat16: used as "
        "angles at program.py:6, in <module>",
    ),
    Program(
        """\
import torch

steps = torch.tensor([999, 998, 997, 996])
frequencies = torch.tensor([1.0, 0.1])
angles = steps.to(torch.bfloat16).float()[:, None] * frequencies
embedding = angles.sin()
""",
        at=5,
        prints="`steps.to(torch.bfloat16)`: 4 distinct integers, 2 in bfloat16: used as angles at program.py:6, "
        "in <module>",
    ),
    Program(
        """\
import torch
import torch.nn.functional as F

ids = torch.tensor([5, 30001, 30002, 11])
batch = ids.bfloat16()
rows = F.embedding(batch.long(), torch.ones(40_000, 2))
""",
        at=5,
        prints="`ids.bfloat16()`: 4 distinct integers, 3 in bfloat16: used as integers at program.py:6, in <module>",
    ),
    Program(
        """\
import torch

mask = torch.ones(1, 3000).half()
positions = (mask.cumsum(-1) - 1).long()
""",
        at=4,
        prints="`mask.cumsum(-1)`: 3000 distinct integers, 2524 in float16: used as integers at program.py:4, "
        "in <module>",
    ),
    Program(
        """\
import torch

angles = torch.tensor([0.0, 100.0, 200.0]).bfloat16()
waves = angles.sin()
""",
        at=4,
        prints="`angles.sin()`: angles up to 200 have a spacing of 1 in bfloat16",
    ),
]
GOOD = [
    Program(
        """\
import torch

x = torch.zeros(1, 600, 4).bfloat16()
positions = torch.arange(x.shape[1], dtype=torch.float32)
angles = positions[:, None] * torch.tensor([1.0, 0.1])
table = angles.cos().to(x.dtype)
"""
    ),
    Program(
        """\
import torch

positions = torch.arange(257, dtype=torch.bfloat16) / 256
image = torch.arange(256).half() / 255
"""
    ),
    Program(
        """\
import torch

angles = torch.linspace(-3.0, 3.0, 50).half()
waves = angles.sin(), angles.cos()
"""
    ),
    Program(
        """\
import torch

mask = torch.ones(1, 3000).half()
positions = mask.long().cumsum(-1) - 1
"""
    ),
]
