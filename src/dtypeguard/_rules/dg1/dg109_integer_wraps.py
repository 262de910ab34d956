"""DG109 integer-wraps."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG109",
    "integer-wraps",
    Severity.WARNING,
    summary="Integers leave the range of their dtype, and wrap around.",
    says="`{what}`: {detail}",
    fix="take a wider dtype, a bool mask or a clamp: {advice}",
    why=(
        "Integer arithmetic is modulo the range of the dtype: 3 - 5 in uint8 is 254, 300 * 300 in int16 "
        "24464. Hashes and random numbers want that: large odd factors, and what goes on to operations on "
        "bits, are no finding. `~` on an integer mask flips bits: 1 becomes -2, or 254 in uint8, which "
        "counts as true like -1 and 255. A float outside of an integer dtype becomes any number in it."
    ),
    sources=("https://github.com/pytorch/pytorch/issues/24180",),
)

BAD = [
    Program(
        """\
import torch

now = torch.tensor([3, 9], dtype=torch.uint8)
before = torch.tensor([5, 5], dtype=torch.uint8)
change = now - before
""",
        at=5,
        prints="`now - before`: 1 of 2 results are outside of 0 to 255 and wrap around",
    ),
    Program(
        """\
import torch

image = torch.tensor([[10, 200]], dtype=torch.uint8)
image += 100
""",
        at=4,
        prints="`image += 100`: 1 of 2 results are outside of 0 to 255 and wrap around",
    ),
    Program(
        """\
import torch

hidden = torch.tensor([1, 0, 1, 0], dtype=torch.uint8)
x = torch.tensor([1.0, 2.0, 3.0, 5.0])
kept = ~hidden
mean = (x * kept).sum() / kept.sum()
""",
        at=5,
        prints="`~hidden`: of 0 and 1 in uint8 it makes 255 and 254, which both are true",
    ),
    Program(
        """\
import torch

picture = torch.tensor([-0.02, 0.5, 1.01])
pixels = (picture * 255).to(torch.uint8)
""",
        at=4,
        prints="`(picture * 255).to(torch.uint8)`: 2 of 3 values are outside of 0 to 255 and wrap around",
    ),
    Program(
        """\
import torch

rows = torch.tensor([10, 70_000], dtype=torch.int32)
columns = torch.tensor([3, 4], dtype=torch.int32)
offsets = rows * 50_000 + columns
""",
        at=5,
        prints="`rows * 50_000`: 1 of 2 results are outside of -2147483648 to 2147483647 and wrap around",
    ),
    Program(
        """\
import torch

milliseconds = torch.tensor([1_700_000_000_000, 1_700_000_001_000])
stamps = milliseconds.int()
""",
        at=4,
        prints="`milliseconds.int()`: 2 of 2 values are outside of -2147483648 to 2147483647 and wrap around",
        severity=Severity.INFO,
    ),
]
GOOD = [
    Program(
        """\
import torch

now = torch.tensor([3, 9], dtype=torch.uint8)
before = torch.tensor([5, 5], dtype=torch.uint8)
change = now.int() - before.int()
"""
    ),
    Program(
        """\
import torch

ids = torch.tensor([12, 34567], dtype=torch.int32)
hashed = ids * -2048144789
hashed = (hashed ^ (hashed >> 13)) * -1028477379
"""
    ),
    Program(
        """\
import torch

hidden = torch.tensor([1, 0, 1, 0], dtype=torch.uint8)
x = torch.tensor([1.0, 2.0, 3.0, 5.0])
kept = ~hidden.bool()
mean = (x * kept).sum() / kept.sum()
"""
    ),
    Program(
        """\
import torch

picture = torch.tensor([-0.02, 0.5, 1.01])
pixels = (picture * 255).round().clamp(0, 255).to(torch.uint8)
negative = ~pixels
"""
    ),
]
