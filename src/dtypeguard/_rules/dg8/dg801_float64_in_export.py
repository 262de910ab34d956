"""DG801 float64-in-export."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG801",
    "float64-in-export",
    Severity.WARNING,
    summary="An exported graph computes in float64, though the parameters of the model are narrower.",
    says=(
        "{nodes} of the exported graph {are} float64, the parameters are {expected}: {source} (exported at {called})"
    ),
    fix="{advice}",
    why=(
        "A float64 constant makes all that it meets float64. Runtimes that have only float32 kernels "
        "reject the graph, or run it slowly."
    ),
    sources=("https://github.com/Megvii-BaseDetection/YOLOX/issues/1674",),
)

BAD = [
    Program(
        """\
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        mean = torch.from_numpy(np.array([0.485, 0.456, 0.406]))
        self.register_buffer("mean", mean)
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head((x - self.mean).float())


program = torch.export.export(Net(), (torch.rand(2, 3),))
""",
        at=14,
        prints="`sub` of the exported graph is float64, the parameters are float32: buffer `mean` is float64 "
        "(exported at program.py:17, in <module>)",
    ),
    Program(
        """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        table = torch.linspace(0, 1, 3, dtype=torch.float64)
        return self.head((x * table).float())


program = torch.export.export(Net(), (torch.rand(2, 3),))
""",
        at=12,
        prints="`linspace`, `mul` of the exported graph are float64, the parameters are float32: it is made in "
        "float64 (exported at program.py:15, in <module>)",
    ),
    Program(
        """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(x.float()) + x


program = torch.export.export(Net(), (torch.rand(2, 3, dtype=torch.float64),))
""",
        at=11,
        prints="`add` of the exported graph is float64, the parameters are float32: input `x` is float64 "
        "(exported at program.py:14, in <module>)",
    ),
    Program(
        """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(x.double().cumsum(-1).float())


program = torch.export.export(Net(), (torch.rand(2, 3),))
""",
        at=11,
        prints="`to`, `cumsum` of the exported graph are float64, the parameters are float32: it is cast to "
        "float64 (exported at program.py:14, in <module>)",
        severity=Severity.INFO,
    ),
]
GOOD = [
    Program(
        """\
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        mean = torch.from_numpy(np.array([0.485, 0.456, 0.406]))
        self.register_buffer("mean", mean.float())
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(x - self.mean)


program = torch.export.export(Net(), (torch.rand(2, 3),))
"""
    ),
    Program(
        """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(3))
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(x - self.mean)


program = torch.export.export(Net().double(), (torch.rand(2, 3, dtype=torch.float64),))
"""
    ),
    Program(
        """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(x.float()) * 0.5 + x.shape[0] / 3


program = torch.export.export(Net(), (torch.rand(2, 3, dtype=torch.float64),))
"""
    ),
]
