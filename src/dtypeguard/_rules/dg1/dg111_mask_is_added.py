"""DG111 mask-is-added."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG111",
    "mask-is-added",
    Severity.WARNING,
    summary="An attention mask of zeros and ones is added to the scores, and so masks nothing.",
    says=("{argument} of {function} is {dtype} and holds only 0 and 1: it is added to the scores, and masks nothing"),
    fix="give a bool mask: `{code}.bool()`{caution}",
    why=(
        "Attention takes two kinds of masks. A bool mask hides, a float mask is added to the scores: a 1 "
        "in it makes a position a little more likely."
    ),
    sources=("https://github.com/pytorch/pytorch/issues/92554",),
)

BAD = [
    Program(
        """\
import torch
import torch.nn.functional as F

q = torch.randn(1, 2, 4, 8)
mask = torch.ones(4, 4).tril()
out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
""",
        at=6,
        prints="attn_mask of scaled_dot_product_attention is float32 and holds only 0 and 1: it is added to the "
        "scores, and masks nothing",
    ),
    Program(
        """\
import torch
from torch import nn

attention = nn.MultiheadAttention(8, 2, batch_first=True)
x = torch.randn(2, 3, 8)
padding = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
out, weights = attention(x, x, x, key_padding_mask=padding)
""",
        at=7,
        prints="key_padding_mask of multi_head_attention_forward is float32 and holds only 0 and 1: it is added "
        "to the scores, and masks nothing",
    ),
    Program(
        """\
import torch

scores = torch.randn(1, 3, 3)
mask = torch.tensor([[[1, 1, 0]]])
weights = (scores + mask).softmax(-1)
""",
        at=5,
        prints="the mask of softmax is int64 and holds only 0 and 1: it is added to the scores, and masks nothing",
    ),
    Program(
        """\
import torch
from torch import nn

layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
x = torch.randn(2, 4, 8)
out = layer(x, src_mask=torch.ones(4, 4).triu(1))
""",
        at=6,
        prints="attn_mask of multi_head_attention_forward is float32 and holds only 0 and 1: it is added to the "
        "scores, and masks nothing",
    ),
]
GOOD = [
    Program(
        """\
import torch
import torch.nn.functional as F

q = torch.randn(1, 2, 4, 8)
mask = torch.ones(4, 4).tril().bool()
out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
"""
    ),
    Program(
        """\
import torch
import torch.nn.functional as F

q = torch.randn(1, 2, 4, 8)
hidden = torch.ones(4, 4).triu(1).bool()
mask = torch.zeros(4, 4).masked_fill(hidden, -torch.inf)
out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
"""
    ),
    Program(
        """\
import torch

scores = torch.randn(1, 3, 3)
mask = torch.tensor([[[1, 1, 0]]])
weights = (scores + (1 - mask) * -1e9).softmax(-1)
"""
    ),
]
