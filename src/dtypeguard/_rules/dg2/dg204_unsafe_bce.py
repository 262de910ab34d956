"""DG204 unsafe-bce."""

from .._kit import Program, Rule, Severity
from .._refusals import Refused, Turn, explains

RULE = Rule(
    "DG204",
    "unsafe-bce",
    Severity.ERROR,
    summary="`binary_cross_entropy` is called under autocast, which refuses it.",
    says="`{what}`: {reason}",
    fix="leave out the sigmoid and use `binary_cross_entropy_with_logits` (`nn.BCEWithLogitsLoss`)",
    why=(
        "The logarithm of a half probability is infinite long before that of a float32 one, so autocast "
        "refuses `binary_cross_entropy` on a GPU."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#prefer-binary-cross-entropy-with-logits-over-binary-cross-entropy",
    ),
)


@explains(Turn.MESSAGE)
def refused(it: Refused) -> bool:
    return "unsafe to autocast" in it.event.reason and it.tell(RULE)


BAD = [
    Program(
        """\
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode


def step(x, y, weight):
    with torch.autocast("xpu", dtype=torch.float16):
        p = torch.sigmoid(x @ weight)
        return F.binary_cross_entropy(p, y)


with FakeTensorMode(), torch.device("xpu"):
    step(torch.rand(3, 4), torch.rand(3, 1), torch.rand(4, 1))
""",
        at=9,
        prints="`F.binary_cross_entropy(p, y)`: torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are "
        "unsafe to autocast.",
        fix="leave out the sigmoid and use `binary_cross_entropy_with_logits` (`nn.BCEWithLogitsLoss`)",
    ),
    Program(
        """\
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

criterion = nn.BCELoss()


@torch.autocast("xpu", dtype=torch.bfloat16)
def validate(x, y, weight):
    p = (x @ weight).sigmoid()
    return criterion(p, y)


with FakeTensorMode(), torch.device("xpu"):
    validate(torch.rand(3, 4), torch.ones(3, 1), torch.rand(4, 1))
""",
        at=11,
        prints="`criterion(p, y)`: torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
        "autocast.",
    ),
    Program(
        """\
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode


def focal_loss(logits, targets, gamma=2.0):
    p = logits.sigmoid()
    loss = F.binary_cross_entropy(p, targets, reduction="none")
    return (loss * (targets - p).abs() ** gamma).mean()


@torch.autocast("xpu", dtype=torch.float16)
def step(features, boxes):
    scores = F.conv2d(features, torch.ones(1, 3, 1, 1))
    return focal_loss(scores, boxes)


with FakeTensorMode(), torch.device("xpu"):
    step(torch.rand(1, 3, 4, 4), torch.ones(1, 1, 4, 4))
""",
        at=8,
        prints='`F.binary_cross_entropy(p, targets, reduction="none")`: torch.nn.functional.binary_cross_entropy '
        "and torch.nn.BCELoss are unsafe to autocast.",
    ),
]
GOOD = [
    Program(
        """\
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode


def step(x, y, weight):
    with torch.autocast("xpu", dtype=torch.float16):
        logits = x @ weight
        return F.binary_cross_entropy_with_logits(logits, y)


with FakeTensorMode(), torch.device("xpu"):
    step(torch.rand(3, 4), torch.rand(3, 1), torch.rand(4, 1))
"""
    ),
    Program(
        """\
import torch
from torch import nn

model, x, y = nn.Linear(4, 1), torch.randn(3, 4), torch.rand(3, 1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    p = torch.sigmoid(model(x))
    with torch.autocast("cpu", enabled=False):
        loss = nn.BCELoss()(p.float(), y)
loss.backward()
"""
    ),
    Program(
        """\
import torch
import torch.nn.functional as F
from torch import nn

model, x, y = nn.Linear(4, 1), torch.randn(3, 4), torch.rand(3, 1)
p = torch.sigmoid(model(x))
loss = F.binary_cross_entropy(p, y)
loss.backward()
"""
    ),
]
