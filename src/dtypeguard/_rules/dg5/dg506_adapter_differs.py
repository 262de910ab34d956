"""DG506 adapter-differs."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG506",
    "adapter-differs",
    Severity.INFO,
    summary="A few parameters of a model have another dtype than all the others.",
    says="{names} are {found}, the other parameters of {module} {expected}{effect}",
    fix="convert the adapter like the model: `adapter.to(model.dtype)`, or cast what passes between them",
    why="A layer that is added to a converted model (an adapter, a head, a cache) has the default dtype.",
    sources=("https://github.com/huggingface/accelerate/issues/3620",),
)

BAD = [
    Program(
        """\
import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Linear(16, 2, bias=False)
        self.up = nn.Linear(2, 16, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x.float())).to(x.dtype)


model = Adapted(nn.Linear(16, 16).bfloat16())
out = model(torch.ones(2, 16).bfloat16())
""",
        at=17,
        prints="`down.weight`, `up.weight` are float32, the other parameters of Adapted bfloat16",
    ),
    Program(
        """\
import torch
from torch import nn
from torch.nn.functional import normalize


class Similarity(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8, dtype=torch.bfloat16)
        self.logit_scale = nn.Parameter(torch.tensor(2.66))

    def forward(self, x):
        y = normalize(self.body(x), dim=-1)
        return self.logit_scale.exp() * (y @ y.t())


model = Similarity()
loss = model(torch.ones(3, 8).bfloat16()).float().sum()
""",
        at=18,
        prints="`logit_scale` are float32, the other parameters of Similarity bfloat16",
    ),
    Program(
        """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).half()
model.append(nn.Linear(8, 2))
out = model(torch.ones(3, 8).half())
""",
        at=6,
        prints="`3.weight`, `3.bias` are float32, the other parameters of Sequential float16",
    ),
]
GOOD = [
    Program("""\
import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Linear(16, 2, bias=False)
        self.up = nn.Linear(2, 16, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


model = Adapted(nn.Linear(16, 16).bfloat16()).bfloat16()
out = model(torch.ones(2, 16).bfloat16())
"""),
    Program("""\
import torch
from torch import nn

teacher, student = nn.Linear(8, 2).half(), nn.Linear(8, 2)
x = torch.ones(3, 8)
with torch.no_grad():
    target = teacher(x.half()).float()
nn.functional.mse_loss(student(x), target).backward()
"""),
    Program("""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()).eval().half()
out = model(torch.ones(3, 8).half())
"""),
]
