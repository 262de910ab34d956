"""DG603 load-truncates."""

from ..._watch.events import Loading
from .._kit import Program, Recorder, Rule, Severity, listed, name_of, on

RULE = Rule(
    "DG603",
    "load-truncates",
    Severity.ERROR,
    summary="Loading a checkpoint cuts off the fractions of floats, because the model has integers there.",
    says="`load_state_dict` writes {was} into {dtype}: the fractions of {names} of {module} are lost ({value})",
    fix="register the buffer with a floating dtype: `torch.tensor(1.0)`, not `torch.tensor(1)`",
    why=("Loading copies into the tensors that the model has; what is copied into an integer tensor is truncated."),
    sources=("https://github.com/pytorch/pytorch/issues/126000",),
)


@on("loading", RULE)
def truncates(event: Loading, audit: Recorder) -> None:
    was, dtype, state = event.was, event.dtype, event.state
    if not was.is_floating_point or dtype.is_floating_point or dtype.is_complex:
        return
    broken = [name for name in event.names if bool((state[name] != state[name].trunc()).any())]
    if broken:
        value = state[broken[0]]
        fraction = float(value[value != value.trunc()].flatten()[0])
        facts = {
            "names": listed(broken), "module": event.path, "was": name_of(was), "dtype": name_of(dtype),
            "value": f"{fraction:g}, ...",
        }  # fmt: skip
        audit.find(RULE, event.site, facts=facts, **event.fields)


BAD = [
    Program(
        """\
import torch
from torch import nn


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running_max", torch.tensor(1))


observer = Observer()
observer.load_state_dict({"running_max": torch.tensor(2.8699)})
""",
        at=12,
        prints="`load_state_dict` writes float32 into int64: the fractions of `running_max` of Observer are "
        "lost (2.8699, ...)",
        fix="register the buffer with a floating dtype: `torch.tensor(1.0)`, not `torch.tensor(1)`",
    ),
    Program(
        """\
import torch
from torch import nn

clients = [nn.BatchNorm1d(2).state_dict() for _ in range(2)]
clients[1]["num_batches_tracked"] += 3
mean = {name: (clients[0][name] + clients[1][name]) / 2 for name in clients[0]}

server = nn.BatchNorm1d(2)
server.load_state_dict(mean)
""",
        at=9,
        prints="`load_state_dict` writes float32 into int64: the fractions of `num_batches_tracked` of "
        "BatchNorm1d are lost (1.5, ...)",
    ),
    Program(
        """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
model[1].register_buffer("scale", torch.ones(2, dtype=torch.int8))
checkpoint = {**model.state_dict(), "1.scale": torch.tensor([0.5, 0.25])}
model.load_state_dict(checkpoint, strict=False)
""",
        at=7,
        prints="`load_state_dict` writes float32 into int8: the fractions of `1.scale` of Sequential are lost "
        "(0.5, ...)",
    ),
]
GOOD = [
    Program("""\
import torch
from torch import nn


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("running_max", torch.tensor(1.0))


observer = Observer()
observer.load_state_dict({"running_max": torch.tensor(2.8699)})
"""),
    Program("""\
import torch
from torch import nn

server = nn.BatchNorm1d(2)
server.load_state_dict({**server.state_dict(), "num_batches_tracked": torch.tensor(3.0)})
"""),
    Program("""\
import torch
from torch import nn

clients = [nn.BatchNorm1d(2).state_dict() for _ in range(2)]
mean = {name: (clients[0][name] + clients[1][name]) / 2 for name in clients[0]}
del mean["num_batches_tracked"]

server = nn.BatchNorm1d(2)
server.load_state_dict(mean, strict=False)
"""),
]
