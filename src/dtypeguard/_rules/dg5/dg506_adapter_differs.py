"""DG506 adapter-differs."""

from dataclasses import dataclass, field

from torch.nn.parameter import is_lazy

from ..._watch.models import Dtypes, usual
from ..._watch.text import inside, tensors_below
from .._kit import Call, Program, Recorder, Rule, Severity, listed, name_of, on, size_of

RULE = Rule(
    "DG506",
    "adapter-differs",
    Severity.INFO,
    summary="A few parameters of a model have another dtype than all the others.",
    says="{names}: {found}, where the other parameters of {module} are {expected}",
    fix="convert the adapter like the model: `adapter.to(model.dtype)`, or cast what passes between them",
    why="A layer that is added to a converted model (an adapter, a head, a cache) has the default dtype.",
    sources=("https://github.com/huggingface/accelerate/issues/3620",),
)


@dataclass
class Seen:
    roots: set[int] = field(default_factory=set)


@on("entered", RULE, "DG101", "DG110")  # which ask for the dtype of models that are gone
def parameters_agree(call: Call, audit: Recorder) -> None:
    """Once for each outermost module: whether its parameters have one dtype."""
    seen = audit.state(Seen).roots
    if audit.local.modules or id(call.module) in seen:
        return
    seen.add(id(call.module))
    parameters = [
        (inside(path, name), tensor)
        for path, _, kind, name, tensor in tensors_below(call.module)
        if kind == "parameter" and tensor.dtype.is_floating_point
    ]
    if any(is_lazy(parameter) for _, parameter in parameters):
        seen.discard(id(call.module))  # it has no dtypes yet
        return
    if not parameters:
        return
    dtype = audit.state(Dtypes).of[call.path] = usual([parameter for _, parameter in parameters], call.module, audit)
    odd = [(name, parameter) for name, parameter in parameters if parameter.dtype is not dtype]
    if not odd:
        return
    facts = {
        "names": listed(name for name, _ in odd), "found": " and ".join(sorted({name_of(p.dtype) for _, p in odd})),
        "module": call.path, "expected": name_of(dtype),
    }  # fmt: skip
    audit.find(
        RULE, audit.here(), module=call.path, op="forward", facts=facts, parameters=[name for name, _ in odd],
        from_dtype=odd[0][1].dtype, to_dtype=dtype, bytes=sum(size_of(p) for _, p in odd),
    )  # fmt: skip


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
        prints="`down.weight`, `up.weight`: float32, where the other parameters of Adapted are bfloat16",
        fix="convert the adapter like the model: `adapter.to(model.dtype)`, or cast what passes between them",
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
        prints="`logit_scale`: float32, where the other parameters of Similarity are bfloat16",
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
        prints="`3.weight`, `3.bias`: float32, where the other parameters of Sequential are float16",
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
