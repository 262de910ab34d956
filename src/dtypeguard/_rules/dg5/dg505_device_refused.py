"""DG505 device-refused."""

from .._kit import Program, Rule, Severity
from .._refusals import Refused, Turn, explains

RULE = Rule(
    "DG505",
    "device-refused",
    Severity.ERROR,
    summary="The tensors of one operation are on several devices.",
    says="`{what}` was refused: {reason}{operands}",
    fix="move one of them: {advice}",
    why=(
        "Tensors of one operation are on one device. A state that is built in the loop, or an attribute "
        "that `.to()` does not reach, stays on the CPU."
    ),
    sources=("https://github.com/pytorch/pytorch/issues/10658",),
)


@explains(Turn.DEVICE)
def refused(it: Refused) -> bool:
    advice = "`.to(x.device)`; a tensor that belongs to a module is a buffer of it"
    return it.devices and it.tell(RULE, advice="`.cpu()` on the lengths" if "lengths" in it.event.reason else advice)


BAD = [
    Program(
        """\
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 4)

    def forward(self, words):
        state = torch.zeros(1, words.shape[1], 4), torch.zeros(1, words.shape[1], 4)
        return self.rnn(words, state)[0]


model = Tagger().to("meta")
model(torch.zeros(2, 1, 3, device="meta"))
""",
        at=12,
        prints="`self.rnn(words, state)` was refused: Input and hidden tensors are not at the same device, found "
        "input tensor at meta and hidden tensor at cpu; `hx[0]` = f32[1,1,4] on cpu (torch.zeros(1, "
        "words.shape[1], 4) at program.py:11, in forward: float32); `hx[1]` = f32[1,1,4] on cpu "
        "(torch.zeros(1, words.shape[1], 4) at program.py:11, in forward: float32)",
        fix="move one of them: `.to(x.device)`; a tensor that belongs to a module is a buffer of it",
    ),
    Program(
        """\
import torch
from torch import nn

model = nn.Linear(3, 2).to("meta")
batch = torch.rand(8, 3)
model(batch)
""",
        at=6,
        prints="`model(batch)` was refused: Tensor on device meta is not on the expected device cpu!; `operand 1` "
        "= f32[8,3] on cpu (torch.rand(8, 3) at program.py:5, in <module>: float32)",
    ),
    Program(
        """\
import torch
from torch import nn

logits, target = torch.zeros(2, 3, device="meta"), torch.zeros(2, 3, device="meta")
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.ones(3))
loss = criterion(logits, target)
""",
        at=6,
        prints="`criterion(logits, target)` was refused: Tensor on device meta is not on the expected device "
        "cpu!; `BCEWithLogitsLoss.pos_weight` = f32[3] on cpu (torch.ones(3) at program.py:5, in <module>: float32)",
    ),
    Program(
        """\
import torch
from torch.nn.utils.rnn import pack_padded_sequence

batch = {"words": torch.zeros(3, 2, 4), "lengths": torch.tensor([3, 2])}
batch = {name: value.to("meta") for name, value in batch.items()}
packed = pack_padded_sequence(batch["words"], batch["lengths"])
""",
        at=6,
        prints='`pack_padded_sequence(batch["words"], batch["lengths"])` was refused: \'lengths\' argument should '
        "be a 1D CPU int64 tensor, but got 1D meta Long tensor",
    ),
    Program(
        """\
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qk = nn.Linear(4, 8)

    def forward(self, x):
        q, k = self.qk(x).chunk(2, -1)
        mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        return (q @ k.transpose(1, 2)).masked_fill(mask, float("-inf"))


model = Attention().to("meta")
model(torch.zeros(1, 3, 4, device="meta"))
""",
        at=13,
        prints='`(q @ k.transpose(1, 2)).masked_fill(mask, float("-inf"))` was refused: Tensor on device meta is '
        "not on the expected device cpu!; `operand 1` = bool[3,3] on cpu (torch.ones(x.shape[1], "
        "x.shape[1]).triu(1).bool() at program.py:12, in forward: bool)",
    ),
]
GOOD = [
    Program(
        """\
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 4)

    def forward(self, words):
        state = words.new_zeros(1, words.shape[1], 4), words.new_zeros(1, words.shape[1], 4)
        return self.rnn(words, state)[0]


model = Tagger().to("meta")
model(torch.zeros(2, 1, 3, device="meta"))
"""
    ),
    Program(
        """\
import torch
from torch import nn

model = nn.Linear(3, 2).to("meta")
batch = torch.rand(8, 3)
model(batch.to("meta"))
"""
    ),
    Program(
        """\
import torch

x = torch.zeros(3, device="meta")
y = x * torch.tensor(2.0) + 1.0
"""
    ),
    Program(
        """\
import torch
from torch.nn.utils.rnn import pack_padded_sequence

batch = {"words": torch.zeros(3, 2, 4), "lengths": torch.tensor([3, 2])}
packed = pack_padded_sequence(batch["words"].double(), batch["lengths"].cpu())
"""
    ),
]
