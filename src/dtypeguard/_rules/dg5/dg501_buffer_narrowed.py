"""DG501 buffer-narrowed."""

from ..._watch.text import tensors_below
from .._kit import Conversion, Program, Recorder, Rule, Severity, on, size_of
from ._stays import Stays, enter_all

RULE = Rule(
    "DG501",
    "buffer-narrowed",
    Severity.INFO,
    summary="A conversion of the module made one of its buffers narrower.",
    says="{which} of {module}: converted from {was} to {dtype}{effect}",
    fix="{kept}",
    why=(
        "`Module.to(dtype)` converts every floating buffer. Frequencies, statistics and tables are small, "
        "and need the digits."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to",
        "https://github.com/huggingface/transformers/issues/25681",
    ),
)


@on("converted", RULE)
def narrowed(event: Conversion, audit: Recorder) -> None:
    found = []
    for path, module, kind, name, buffer in tensors_below(event.model):
        was, dtype = event.before.get((path, name)), buffer.dtype
        if kind == "buffer" and was is not None and was.itemsize > dtype.itemsize:
            where = event.site, event.inside(path), name, f"Module.{event.name}"
            stays = Stays(RULE, kind, *where, was, dtype, size_of(buffer))
            stays.of_torch = type(module).__module__.startswith("torch.nn.")
            found.append((path, buffer, stays))
    enter_all(audit, event, found)


BAD = [
    Program(
        """\
import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, dim, 2).float() / dim))

    def forward(self, positions):
        return torch.outer(positions.to(self.inv_freq.dtype), self.inv_freq).cos()


rotary = Rotary()
rotary.to(torch.bfloat16)
cos = rotary(torch.arange(600))
""",
        at=15,
        prints="buffer `inv_freq` of Rotary: converted from float32 to bfloat16: angles up to 600 have a "
        "spacing of 4 at program.py:11, in forward",
        severity=Severity.WARNING,
        fix="keep it in float32, and cast only what is made from it: `kept, rotary.inv_freq = rotary.inv_freq, None` "
        "before the conversion, and `rotary.inv_freq = kept` after it; or compute it in forward",
    ),
    Program(
        """\
import torch
from torch import nn


class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("alphas_cumprod", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0))

    def forward(self, x, noise, t):
        alpha = self.alphas_cumprod[t].view(-1, 1)
        return alpha.sqrt() * x + (1 - alpha).sqrt() * noise


model = Diffusion().half()
noisy = model(torch.ones(2, 4).half(), torch.ones(2, 4).half(), torch.tensor([0, 999]))
""",
        at=15,
        prints="buffer `alphas_cumprod` of Diffusion: converted from float32 to float16",
    ),
    Program(
        """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
model = model.to(device="cpu", dtype=torch.float16)
out = model(torch.ones(3, 4).half())
""",
        at=5,
        prints="buffers `1.running_mean`, `1.running_var` of Sequential: converted from float32 to float16",
        fix="keep the module in float32: `kept, model[1] = model[1], None` before the conversion, "
        "and `model[1] = kept.to('cpu')` after it",
    ),
]
GOOD = [
    Program("""\
import torch
from torch import nn


class Rotary(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.dim = dim

    def forward(self, positions):
        inv_freq = 1.0 / 10000 ** (torch.arange(0, self.dim, 2, device=positions.device).float() / self.dim)
        return torch.outer(positions.float(), inv_freq).cos()


rotary = Rotary()
rotary.to(torch.bfloat16)
cos = rotary(torch.arange(600)).bfloat16()
"""),
    Program("""\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
model[0].bfloat16()
out = model(torch.ones(3, 4).bfloat16())
"""),
    Program("""\
import torch
from torch import nn

model = nn.Embedding(4, 2)
model.register_buffer("positions", torch.arange(4))
model.half()
out = model(model.positions)
"""),
    Program("from torch import nn\n\nmodel = nn.BatchNorm1d(4).float().double()\n"),
]
