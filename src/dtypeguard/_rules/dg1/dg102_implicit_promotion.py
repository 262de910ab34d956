"""DG102 implicit-promotion."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG102",
    "implicit-promotion",
    Severity.WARNING,
    summary="Operands of two dtypes are promoted to the wider one without a word.",
    says="`{what}` mixes {pair}: the result is {wide}{size}",
    fix="cast one side where it is made: {advice}",
    why=(
        "Operands of several dtypes are promoted without a word. A float32 table or constant turns half "
        "activations into float32, and so all that follows; between integers and floats it is usually "
        "meant."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
        "https://github.com/lucidrains/rotary-embedding-torch/issues/9",
    ),
)


BAD = [
    Program(
        """\
import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.linspace(0.5, 1.0, 4)

    def forward(self, q):
        return q * self.scale


model = Rotary().bfloat16()
q = model(torch.randn(3, 4, dtype=torch.bfloat16))
""",
        at=11,
        prints="`q * self.scale` mixes bfloat16 and float32: the result is float32, 48 B",
    ),
    Program(
        """\
import torch

slopes = torch.tensor([0.5, 0.25, 0.125, 0.0])
scores, gate = torch.randn(2, 4).half(), torch.rand(2, 1).half()
scores = scores + slopes
scores = scores * gate
""",
        at=5,
        prints="`scores + slopes` mixes float16 and float32: the result is float32, 32 B",
    ),
    Program(
        """\
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(x.dtype)


model = nn.Sequential(Norm(), nn.Linear(4, 4).bfloat16())
model(torch.randn(2, 4, dtype=torch.bfloat16))
""",
        at=13,
        prints="`self.weight * h.to(x.dtype)` mixes bfloat16 and float32: the result is float32, 32 B",
    ),
    Program(
        """\
import torch

image, latent = torch.randn(4), torch.randn(4).half()
pair = torch.stack([image, latent])
noise = pair - latent
""",
        at=4,
        prints="`torch.stack([image, latent])` mixes float16 and float32: the result is float32, 32 B",
    ),
    Program(
        """\
import torch

counts = torch.tensor([3, 4, 5])
weights = torch.rand(3)
mean = (counts * weights).sum()
""",
        at=5,
        prints="`counts * weights` mixes int64 and float32: the result is float32, 12 B",
        severity=Severity.INFO,
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.linspace(0.5, 1.0, 4)

    def forward(self, q):
        return q * self.scale.to(q.dtype)


model = Rotary().bfloat16()
q = model(torch.randn(3, 4, dtype=torch.bfloat16))
"""
    ),
    Program(
        """\
import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(x.dtype)


model = nn.Sequential(RMSNorm(), nn.Linear(4, 4)).bfloat16()
model(torch.randn(2, 4, dtype=torch.bfloat16))
"""
    ),
    Program(
        """\
import torch

x = torch.randn(4, dtype=torch.bfloat16)
scale = torch.tensor(2.0)
y = torch.where(x > 0, x * scale, 0.1) * 0.5
"""
    ),
    Program(
        """\
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(4, 8).bfloat16()
logits = model(torch.randn(2, 4, dtype=torch.bfloat16))
loss = F.cross_entropy(logits.float(), torch.tensor([1, 3]))
loss.backward()
"""
    ),
]
