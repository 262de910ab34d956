"""DG902 error-amplified."""

from ..._values.engine import Harm
from ..._values.rows import Cause
from ..._watch.events import on
from ..._watch.recorder import Recorder
from ..._watch.rule import Program, Rule, Severity
from ._forms import instead
from ._harm import enter, share, wide_of, would_be

RULE = Rule(
    "DG902",
    "error-amplified",
    Severity.WARNING,
    summary="A line makes a small rounding error so large that results are wrong.",
    says="`{what}`{back}: an error of {came} comes in, {error} goes out: {example}{reached}{rounded}",
    fix="{advice}",
    why=(
        "A difference of nearly equal numbers, the sine of a large angle, the logarithm of a probability that has "
        "become 1, a quotient by what is nearly zero: each makes the relative error of its input larger, and 8 or 11 "
        "bits have a large one to begin with. An audit with `values=True` runs each operation once more in a wider "
        "dtype, and compares. It reports a line where the error became at least 8 times as large, if the results of "
        "the program are wrong for that reason."
    ),
    sources=("https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html",),
)  # fmt: skip


@on("harmed", RULE)
def amplified(harm: Harm, audit: Recorder) -> None:
    if harm.cause is Cause.AMPLIFIED:
        row = harm.row
        what = row.site.expression or row.name
        facts = {
            "came": share(max(row.came, row.half_ulp)),
            "error": share(row.error),
            "example": would_be(row),
            "advice": instead(row) or f"compute `{what}` and what it is computed from in {wide_of(row)}",
        }
        enter(RULE, audit, row, facts, harm)


BAD = [
    Program(
        """\
import torch

x = (torch.arange(64.0) / 64 + 100).bfloat16()
mean = x.mean()
variance = (x * x).mean() - mean * mean
print(variance.sqrt().item())
""",
        at=5,
        prints=(
            "`(x * x).mean() - mean * mean`: an error of 0.39 % comes in, 100 % goes out: 0 where float32 has "
            "0.08398; it reaches a number that the program reads; rounded in bfloat16: mean * mean at program.py:5, "
            "in <module>"
        ),
        fix="compute `(x * x).mean() - mean * mean` and what it is computed from in float32",
    ),
    Program(
        """\
import torch
import torch.nn.functional as F

logits = torch.tensor([[8.0]])
with torch.autocast("cpu", dtype=torch.bfloat16):
    p = torch.sigmoid(logits.bfloat16())
    loss = F.binary_cross_entropy(p.float(), torch.zeros(1, 1))
print(loss.item())
""",
        at=7,
        prints=(
            "`F.binary_cross_entropy(p.float(), torch.zeros(1, 1))`: an error of 0.034 % comes in, more than 1000 % "
            "goes out: 100 where float64 has 8; it reaches a number that the program reads; rounded in bfloat16: "
            "torch.sigmoid(logits.bfloat16()) at program.py:6, in <module>"
        ),
    ),
    Program(
        """\
import torch

positions = torch.arange(256.0) + 0.5
frequencies = torch.tensor([1.0, 0.1])
angles = (positions[:, None] * frequencies).bfloat16()
table = angles.cos()
print(table.sum().item(), table.tolist()[200])
""",
        at=6,
        prints=(
            "`angles.cos()`: an error of 0.39 % comes in, 25 % goes out: 0.2412 where float32 has -0.2538; it reaches"
            " values that the program reads; rounded in bfloat16: (positions[:, None] * frequencies).bfloat16() at "
            "program.py:5, in <module>"
        ),
    ),
]
GOOD = [
    Program(
        """\
import torch

x = (torch.arange(64.0) + 100).bfloat16()
variance = x.float().var(correction=0)
print(variance.sqrt().item())
""",
    ),
    Program(
        """\
import torch
import torch.nn.functional as F

logits = torch.tensor([[8.0]])
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = F.binary_cross_entropy_with_logits(logits.bfloat16(), torch.zeros(1, 1))
print(loss.item())
""",
    ),
    Program(
        """\
import torch

a = torch.randn(64, 64)
one, other = (a @ a).bfloat16(), (a.double() @ a.double()).bfloat16()
print((one - other).abs().max().item())
""",
    ),
    Program(
        """\
import torch

target = torch.linspace(0.1, 1, 64)
weight = torch.zeros(64, requires_grad=True)
for _ in range(200):
    loss = (weight.bfloat16() - target.bfloat16()).square().mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    weight = (weight - 16 * gradient).detach().requires_grad_()
print(loss.item())
""",
    ),
]
