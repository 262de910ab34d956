"""DG903 sum-stalls."""

from ..._values.engine import Harm
from ..._values.rows import Cause
from ..._watch.events import on
from ..._watch.recorder import Recorder
from ..._watch.rule import Program, Rule, Severity
from ._harm import enter, would_be

RULE = Rule(
    "DG903",
    "sum-stalls",
    Severity.WARNING,
    summary="A running total stands still, because what is added is rounded away.",
    says="`{what}`{back}: a total stands still: {example}{reached}",
    fix="keep the total in {wide}, whatever is added",
    why=(
        "In bfloat16 256 + 1 is 256: what is less than half of the distance to the next number is rounded away, each "
        "time anew. Every single addition is right to the last bit, so no check of one operation sees it. An audit "
        "with `values=True` follows the total in a wider dtype. Counts, metrics, moving averages and gradients that "
        "are accumulated over batches do this."
    ),
    sources=(
        "https://github.com/Lightning-AI/pytorch-lightning/issues/18620",
        "https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html",
    ),
)  # fmt: skip


@on("harmed", RULE)
def stalled(harm: Harm, audit: Recorder) -> None:
    if harm.cause is Cause.STALLED:
        enter(RULE, audit, harm.row, {"example": would_be(harm.row)}, harm)


BAD = [
    Program(
        """\
import torch

total = torch.zeros((), dtype=torch.bfloat16)
for value in torch.ones(1000, dtype=torch.bfloat16):
    total = total + value
print(total.item())
""",
        at=5,
        prints=(
            "`total + value`: a total stands still: 256 where float32 has 1000; it reaches a number that the program "
            "reads"
        ),
        fix="keep the total in float32, whatever is added",
    ),
    Program(
        """\
import torch

weight = torch.ones(4)
average = weight.bfloat16()
for step in range(300):
    weight += 0.01
    average.mul_(0.999).add_(weight, alpha=0.001)
print(average.tolist())
""",
        at=7,
        prints=(
            "`average.mul_(0.999).add_(weight, alpha=0.001)`: a total stands still: 1.078 where float32 has 1.41; it "
            "reaches values that the program reads"
        ),
    ),
    Program(
        """\
import torch

weight = torch.ones(8, dtype=torch.bfloat16, requires_grad=True)
x = torch.linspace(0.5, 1.5, 8).bfloat16()
optimizer = torch.optim.SGD([weight], lr=1e-3)
for micro in range(1024):
    (weight * x).sum().backward()
optimizer.step()
""",
        at=7,
        prints=(
            "`(weight * x).sum().backward()`, in backward: a total stands still: 512 where float32 has 1536; it "
            "reaches a gradient that a step uses"
        ),
    ),
]
GOOD = [
    Program(
        """\
import torch

total = torch.zeros(())
for value in torch.ones(1000, dtype=torch.bfloat16):
    total = total + value
print(total.item())
""",
    ),
    Program(
        """\
import torch

weight = torch.ones(4)
average = weight.clone()
for step in range(300):
    weight += 0.01
    average.mul_(0.999).add_(weight, alpha=0.001)
print(average.tolist())
""",
    ),
    Program(
        """\
import torch

total = torch.zeros((), dtype=torch.bfloat16)
for value in torch.ones(200, dtype=torch.bfloat16):
    total += value
print(total.item())
""",
    ),
]
