"""DG205 autocast-not-everywhere."""

import re

import torch

from ..._watch.events import Refusal
from .._kit import Program, Recorder, Rule, Severity, on
from .._refusals import is_about_tensors, operands_of

RULE = Rule(
    "DG205",
    "autocast-not-everywhere",
    Severity.ERROR,
    summary="Under autocast, a function that takes nothing but half tensors gets a float32 one.",
    says="`{what}` under autocast got {dtype}: {reason}",
    fix=(
        "cast what it takes yourself: `.to(torch.get_autocast_dtype({device!r}))`, or annotate it and use "
        "`dtypeguard.enforce`"
    ),
    why=(
        "Inside a region most tensors still are float32: autocast casts for the operations on its lists "
        "only, never for a kernel of an extension."
    ),
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference",
        "https://github.com/meteofrance/py4cast/issues/38",
    ),
)

_HALF = re.compile(r"fp16|bf16|float16|bfloat16|\bhalf\b", re.IGNORECASE)
_WANTS = re.compile(r"d-?type|data ?type|support|expect|require|must|precision|got torch\.", re.IGNORECASE)


@on("refused", RULE)
def refused(event: Refusal, audit: Recorder) -> None:
    """Code of the user's own, or of an extension, that took for granted that autocast casts for it."""
    if not (event.own and event.autocast and is_about_tensors(event)):
        return
    wrong = next((operand for operand in operands_of(event, audit) if operand.dtype is torch.float32), None)
    if wrong is None or not (_HALF.search(event.reason) and _WANTS.search(event.reason)):
        return
    facts = {
        "what": event.caller.expression, "dtype": f"`{wrong.name}` in float32", "reason": event.reason,
        "device": wrong.device.partition(":")[0],
    }  # fmt: skip
    audit.refuse(
        event, RULE.id, event.caller, [], module=event.module, op=event.site.function, facts=facts,
        from_dtype=wrong.dtype, bytes=wrong.size, origin=() if wrong.node is None else wrong.node.line(),
    )  # fmt: skip


BAD = [
    Program(
        """\
import torch
import torch.nn.functional as F


def flash_attention(q, k, v):
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    return F.scaled_dot_product_attention(q, k, v)


x = torch.randn(1, 1, 3, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    q = F.normalize(x, dim=-1)
    y = flash_attention(q, q, x)
""",
        at=14,
        prints="`flash_attention(q, q, x)` under autocast got `q` in float32: FlashAttention only support fp16 "
        "and bf16 data type",
        fix=(
            "cast what it takes yourself: `.to(torch.get_autocast_dtype('cpu'))`, or annotate it and use "
            "`dtypeguard.enforce`"
        ),
    ),
    Program(
        """\
import torch
from torch import nn


def selective_scan(u, delta):
    if u.dtype is not torch.bfloat16:
        raise TypeError(f"selective_scan expects bfloat16, got {u.dtype}")
    return u * delta


norm = nn.LayerNorm(4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    hidden = norm(torch.randn(2, 4))
    y = selective_scan(hidden, hidden)
""",
        at=14,
        prints="`selective_scan(hidden, hidden)` under autocast got `u` in float32: selective_scan expects "
        "bfloat16, got torch.float32",
    ),
    Program(
        """\
import torch
from torch import nn


def grouped_gemm(a, b):
    if a.dtype is torch.float32:
        raise ValueError("grouped_gemm: half precision inputs required")
    return a @ b


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, tokens):
        return grouped_gemm(tokens, self.weight)


with torch.autocast("cpu", dtype=torch.float16):
    Experts()(torch.randn(2, 4))
""",
        at=17,
        prints="`grouped_gemm(tokens, self.weight)` under autocast got `a` in float32: grouped_gemm: half "
        "precision inputs required",
    ),
]
GOOD = [
    Program(
        """\
import torch
import torch.nn.functional as F


def flash_attention(q, k, v):
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    return F.scaled_dot_product_attention(q, k, v)


x = torch.randn(1, 1, 3, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    dtype = torch.get_autocast_dtype("cpu")
    q, v = F.normalize(x, dim=-1).to(dtype), x.to(dtype)
    y = flash_attention(q, q, v)
"""
    ),
    Program(
        """\
import torch
import torch.nn.functional as F


def flash_attention(q, k, v):
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    return F.scaled_dot_product_attention(q, k, v)


def attention(q, k, v):
    try:
        return flash_attention(q, k, v)
    except RuntimeError:
        return F.scaled_dot_product_attention(q, k, v)


x = torch.randn(1, 1, 3, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = attention(x, x, x)
"""
    ),
    Program(
        """\
import torch


def split(batch):
    if len(batch) % 2:
        raise ValueError("cannot split the batch in half")
    return batch.chunk(2)


with torch.autocast("cpu", dtype=torch.bfloat16):
    split(torch.randn(3, 4))
"""
    ),
]
