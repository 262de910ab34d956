"""DG205 autocast-not-everywhere."""

import re

import torch

from ..._engine.watch.events import Refusal
from .._kit import Recorder, Rule, Severity, on
from .._refusals import is_about_tensors, operands_of

RULE = Rule(
    "DG205",
    "autocast-not-everywhere",
    Severity.ERROR,
    summary="A function that takes only half tensors gets float32.",
    says="`{what}` under autocast got {dtype}: {reason}",
    fix=(
        "cast what it takes yourself: `.to(torch.get_autocast_dtype({device!r}))`, or annotate it and use "
        "`dtypeguard.enforce`"
    ),
    why=(
        "Inside a region most tensors still are float32: autocast casts for the operations on its lists "
        "only, never for a kernel of an extension."
    ),
    safe=("cast_for_region",),
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
    audit.enter_refusal(
        event, RULE.id, event.caller, [], module=event.module, op=event.site.function, facts=facts,
        from_dtype=wrong.dtype, bytes=wrong.size, origin=() if wrong.node is None else wrong.node.line(),
    )  # fmt: skip
