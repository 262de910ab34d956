"""DG502 half-running-stats."""

import torch
from torch.nn.modules.batchnorm import _NormBase

from .._kit import HALF, Call, Program, Recorder, Rule, Severity, name_of, on, size_of

RULE = Rule(
    "DG502",
    "half-running-stats",
    Severity.WARNING,
    summary="A norm that is trained keeps its running statistics in half, where small updates are rounded away.",
    says="`{buffer}` of {module} is {dtype}, and training updates it by {momentum:g} of the difference",
    fix=(
        "keep norms in float32: `module.float()` on them after the model was converted (a float32 norm "
        "takes half inputs)"
    ),
    why=(
        "A running average moves by a tenth of the difference or less; in half most of that is rounded "
        "away, so evaluation uses statistics that stand still."
    ),
    sources=("https://github.com/pytorch/pytorch/issues/102922",),
)


@on("entered", RULE)
def running_statistics(call: Call, audit: Recorder) -> None:
    module = call.module
    if not isinstance(module, _NormBase) or not module.training or not module.track_running_stats:
        return
    buffers = module._buffers
    half = {name: buffers.get(name) for name in ("running_mean", "running_var")}
    name, buffer = next(((name, b) for name, b in half.items() if b is not None and b.dtype in HALF), ("", None))
    if buffer is None or module.momentum == 0:
        return
    batches, momentum = buffers.get("num_batches_tracked"), module.momentum
    if momentum is None:  # the average of all
        momentum = 1 / (1 if batches is None else int(batches) + 1)
    facts = {"buffer": name, "module": call.path, "dtype": name_of(buffer.dtype), "momentum": momentum}
    audit.find(
        RULE, audit.here(), module=call.path, op=type(module).__name__, facts=facts,
        from_dtype=buffer.dtype, to_dtype=torch.float32, bytes=size_of(buffer),
    )  # fmt: skip


BAD = [
    Program(
        """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(torch.bfloat16)
for _ in range(3):
    model(torch.randn(6, 4).bfloat16()).sum().backward()
""",
        at=6,
        prints="`running_mean` of Sequential.1 is bfloat16, and training updates it by 0.1 of the difference",
        fix=(
            "keep norms in float32: `module.float()` on them after the model was converted (a float32 norm "
            "takes half inputs)"
        ),
    ),
    Program(
        """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.norm = nn.BatchNorm2d(4, momentum=0.01)

    def forward(self, x):
        return self.norm(self.conv(x))


model = Net().half()
out = model(torch.randn(2, 3, 4, 4).half())
""",
        at=12,
        prints="`running_mean` of Net.norm is float16, and training updates it by 0.01 of the difference",
    ),
    Program(
        """\
import torch
from torch import nn

norm = nn.InstanceNorm1d(4, momentum=None, track_running_stats=True).half()
for _ in range(2):
    out = norm(torch.randn(2, 4, 6).half())
""",
        at=6,
        prints="`running_mean` of InstanceNorm1d is float16, and training updates it by 1 of the difference",
    ),
]
GOOD = [
    Program("""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(torch.bfloat16)
model[1].float()
for _ in range(3):
    model(torch.randn(6, 4).bfloat16()).sum().backward()
"""),
    Program("""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(torch.bfloat16)
model.eval()
out = model(torch.randn(6, 4).bfloat16())
"""),
    Program("""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.LayerNorm(4)).bfloat16()
model(torch.randn(6, 4).bfloat16()).sum().backward()
"""),
]
