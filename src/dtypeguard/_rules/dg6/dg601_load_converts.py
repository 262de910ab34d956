"""DG601 load-converts."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG601",
    "load-converts",
    Severity.INFO,
    summary="Loading a checkpoint converts it to the dtypes that the model, or the optimizer, has.",
    says=("`load_state_dict` converts {share} of {module} from {was} in the checkpoint to {dtype}: {names}{effect}"),
    fix="load into a model of the file's dtype: {advice}",
    why=(
        "Loading copies into the tensors that the model has, and casts without a word: a bfloat16 "
        "checkpoint takes twice its memory in a float32 model, a float32 one loses its digits in a "
        "bfloat16 model."
    ),
    sources=(
        "https://github.com/huggingface/transformers/issues/24976",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict",
    ),
)

BAD = [
    Program(
        """\
import torch
from torch import nn

checkpoint = nn.Linear(4, 4).bfloat16().state_dict()

model = nn.Linear(4, 4)
model.load_state_dict(checkpoint)
""",
        at=7,
        prints="`load_state_dict` converts 2 of 2 entries of Linear from bfloat16 in the checkpoint to "
        "float32: `weight`, `bias`; 40 B more than the file holds",
    ),
    Program(
        """\
import torch
from torch import nn


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("correction_bias", torch.zeros(3))

    def forward(self, scores):
        return (scores + self.correction_bias).argmax(-1)


router = Router().to(torch.bfloat16)
router.load_state_dict({"correction_bias": torch.tensor([8.001, 8.0125, 8.010])})
expert = router(torch.zeros(1, 3).bfloat16())
""",
        at=15,
        prints="`load_state_dict` converts 1 of 1 entries of Router from float32 in the checkpoint to "
        "bfloat16: `correction_bias`; digits are lost",
    ),
    Program(
        """\
import torch
from torch import nn

checkpoint = {"weight": torch.full((2, 2), 1e6), "bias": torch.zeros(2)}
model = nn.Linear(2, 2).half()
model.load_state_dict(checkpoint)
""",
        at=6,
        prints="`load_state_dict` converts 2 of 2 entries of Linear from float32 in the checkpoint to float16: "
        "`weight`, `bias`; `weight` overflow",
        severity=Severity.ERROR,
    ),
    Program(
        """\
import torch
from torch import nn

model = nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters())
model(torch.tensor([[0.1, 0.2]])).sum().backward()
optimizer.step()
checkpoint = optimizer.state_dict()

model.bfloat16()
optimizer = torch.optim.Adam(model.parameters())
optimizer.load_state_dict(checkpoint)
""",
        at=12,
        prints="`load_state_dict` converts 4 tensors of state of Adam from float32 in the checkpoint to "
        "bfloat16: `exp_avg of parameter 0`, `exp_avg_sq of parameter 0`, `exp_avg of parameter 1` and 1 more; "
        "digits are lost for good",
    ),
]
GOOD = [
    Program("""\
import torch
from torch import nn

checkpoint = nn.Linear(4, 4).bfloat16().state_dict()

model = nn.Linear(4, 4).to(torch.bfloat16)
model.load_state_dict(checkpoint)
"""),
    Program("""\
import torch
from torch import nn

checkpoint = nn.Linear(4, 4).bfloat16().state_dict()

model = nn.Linear(4, 4)
model.load_state_dict(checkpoint, assign=True)
out = model(torch.ones(1, 4).bfloat16())
"""),
    Program("""\
import torch
from torch import nn

model = nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(1, 2)).sum().backward()
optimizer.step()

twin = nn.Linear(2, 1)
twin.load_state_dict(model.state_dict())
resumed = torch.optim.Adam(twin.parameters())
resumed.load_state_dict(optimizer.state_dict())
"""),
]
