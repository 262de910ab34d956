"""DG201 half-leaves-autocast."""

from .._kit import HALF, Program, Rule, Severity, name_of
from .._refusals import Refused, Turn, explains

RULE = Rule(
    "DG201",
    "half-leaves-autocast",
    Severity.ERROR,
    summary="What autocast made half leaves the region, and meets a float32 operand that does not take it.",
    says="`{what}` gets {dtype}, which left an autocast region{born}, and {other}: it was refused",
    fix="`.float()` on what leaves the region, or let the region reach this line",
    why="What autocast computes stays in half when the region ends. Outside, nothing is cast any more.",
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#autocasting",
        "https://github.com/shawntan/scattermoe/issues/17",
    ),
)


@explains(Turn.AUTOCAST)
def refused(it: Refused) -> bool:
    left = [] if it.event.autocast else it.autocasts
    if not left or left[0].node is None:
        return False
    others = " and ".join(sorted(map(name_of, it.floats - HALF))) or "other dtypes"
    born = f" at {left[0].node.birth.site}"
    return it.tell(RULE, left, dtype=name_of(left[0].dtype), born=born, other=f"meets {others}")


BAD = [
    Program(
        """\
import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.expert, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.expert(x)
        return self.out(h)


Experts()(torch.randn(2, 4))
""",
        at=13,
        prints="`self.out(h)` gets bfloat16, which left an autocast region at program.py:12, in forward, and "
        "meets float32: it was refused",
        fix="`.float()` on what leaves the region, or let the region reach this line",
    ),
    Program(
        """\
import torch
from torch import nn

backbone, classifier = nn.Linear(4, 4), torch.randn(4, 2)
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    features = backbone(torch.randn(2, 4)).relu()
logits = features @ classifier
""",
        at=7,
        prints="`features @ classifier` gets float16, which left an autocast region at program.py:6, in <module>, "
        "and meets float32: it was refused",
    ),
    Program(
        """\
import torch
from torch import nn

encoder, values = nn.Linear(4, 4), torch.randn(2, 4, 3)
with torch.autocast("cpu", dtype=torch.bfloat16):
    keys = encoder(torch.randn(2, 3, 4))
    with torch.autocast("cpu", enabled=False):
        scores = torch.bmm(keys, values)
""",
        at=8,
        prints="`torch.bmm(keys, values)` gets bfloat16, which left an autocast region at program.py:6, in "
        "<module>, and meets float32: it was refused",
    ),
    Program(
        """\
import torch
from torch import nn

encoder, decoder = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 3, 1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    latent = encoder(torch.randn(1, 3, 4, 4))
decoder(latent)
""",
        at=7,
        prints="`decoder(latent)` gets bfloat16, which left an autocast region at program.py:6, in <module>, and "
        "meets float32: it was refused",
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.expert, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.expert(x)
        return self.out(h.float())


Experts()(torch.randn(2, 4))
"""
    ),
    Program(
        """\
import torch
import torch.nn.functional as F
from torch import nn

model, x = nn.Linear(4, 4), torch.randn(2, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    h = model(x)
loss = F.mse_loss(x + h, x) + h.softmax(-1).mean()
"""
    ),
    Program(
        """\
import torch
from torch import nn

encoder, decoder = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 3, 1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    image = decoder(encoder(torch.randn(1, 3, 4, 4)))
"""
    ),
    Program(
        """\
import torch
from torch import nn

encoder, values = nn.Linear(4, 4), torch.randn(2, 4, 3)
with torch.autocast("cpu", dtype=torch.bfloat16):
    keys = encoder(torch.randn(2, 3, 4))
    with torch.autocast("cpu", enabled=False):
        scores = torch.bmm(keys.float(), values)
"""
    ),
]
