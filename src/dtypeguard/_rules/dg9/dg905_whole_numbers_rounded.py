"""DG905 whole-numbers-rounded."""

from ..._values.engine import Harm
from ..._values.rows import Cause
from ..._watch.events import on
from ..._watch.recorder import Recorder
from ..._watch.rule import Program, Rule, Severity
from ._harm import enter, would_be

RULE = Rule(
    "DG905",
    "whole-numbers-rounded",
    Severity.WARNING,
    summary="Whole numbers are rounded to others, so different ones become equal.",
    says=(
        "`{what}`: {wrong} of {of} whole numbers become others in {dtype}, {before} different ones become {after}: "
        "{example}{reached}"
    ),
    fix="keep positions, counts and ids in integers, or in {wide}",
    why=(
        "bfloat16 has every whole number up to 256, float16 up to 2048, float32 up to 16,777,216. Above, neighbours "
        "become equal: positions, coordinates, token ids and time stamps are others then. An audit with `values=True` "
        "compares with a wider dtype, so it does not matter how the numbers came to be."
    ),
    sources=("https://github.com/huggingface/transformers/issues/28685",),
)  # fmt: skip


@on("harmed", RULE)
def collided(harm: Harm, audit: Recorder) -> None:
    row = harm.row
    if harm.cause is Cause.COLLIDED and row.wrong is not None and row.distinct is not None:
        facts = {
            "wrong": row.wrong[0], "of": row.wrong[1], "before": row.distinct[0], "after": row.distinct[1],
            "example": would_be(row),
        }  # fmt: skip
        enter(RULE, audit, row, facts, harm)


BAD = [
    Program(
        """\
import torch
from torch import nn


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, n):
        return torch.arange(n, dtype=self.scale.dtype) * self.scale


Positions().bfloat16()(4096)
""",
        at=11,
        prints=(
            "`torch.arange(n, dtype=self.scale.dtype)`: 3328 of 4096 whole numbers become others in bfloat16, 4096 "
            "different ones become 769: 2048 where float32 has 2056; it reaches the output of Positions"
        ),
        fix="keep positions, counts and ids in integers, or in float32",
    ),
    Program(
        """\
import torch

tokens = torch.arange(16_777_200, 16_777_264)
table = tokens.float()
print(table.tolist()[:4])
""",
        at=4,
        prints=(
            "`tokens.float()`: 24 of 64 whole numbers become others in float32, 64 different ones become 41: 16777216"
            " where float64 has 16777217; it reaches values that the program reads"
        ),
    ),
    Program(
        """\
import torch

counts = torch.ones(600, dtype=torch.bfloat16)
ends = counts.cumsum(0)
print(ends.tolist()[-1])
""",
        at=4,
        prints=(
            "`counts.cumsum(0)`: 194 of 600 whole numbers become others in bfloat16, 600 different ones become 406: "
            "512 where float32 has 514; it reaches values that the program reads"
        ),
    ),
]
GOOD = [
    Program(
        """\
import torch

positions = torch.arange(4096, dtype=torch.float32)
print((positions * 0.5).tolist()[-1])
""",
    ),
    Program(
        """\
import torch

image = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)
print((image.bfloat16() / 255).mean().item())
""",
    ),
    Program(
        """\
import torch

tokens = torch.arange(0, 65_536, 8)
print(tokens.float().tolist()[-1])
""",
    ),
]
