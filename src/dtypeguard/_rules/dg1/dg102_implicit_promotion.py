"""DG102 implicit-promotion."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..._engine.watch.events import tensors_in
from .._kit import Call, Op, Recorder, Rule, Severity, around, name_of, on, size_of
from ._promotions import MADE, are_floats, facts_of, open_promotions, rows, tell

RULE = Rule(
    "DG102",
    "implicit-promotion",
    Severity.WARNING,
    summary="Operands of two dtypes are silently promoted.",
    says="`{what}` mixes {pair}: the result is {wide}{size}",
    fix="{advice}",
    why=(
        "Operands of several dtypes are promoted without a word. A float32 table or constant turns half "
        "activations into float32, and so all that follows; between integers and floats it is usually "
        "meant."
    ),
    at_birth=True,
    unsafe=("narrow_at_birth", "cast_to_narrow", "cast_to_wide"),
    sources=(
        "https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
        "https://github.com/lucidrains/rotary-embedding-torch/issues/9",
    ),
)

_ENDS = (
    "_softmax _log_softmax softmax log_softmax logsumexp topk sort linalg_vector_norm "
    "max min median mode kthvalue _local_scalar_dense"
).split()


_OF_ANGLES = frozenset(["cos", "sin", "tan", "polar"])


@on("mixed", RULE)
def integers(event: Op, audit: Recorder) -> None:
    """Integers among floats, which are told at once; most are meant."""
    if are_floats(event.kept) or not are_floats(event.inputs) or not event.out.dtype.is_floating_point:
        return
    source, out = event.kept[0], event.out
    advice = f"leave it where it is meant, as of counts: `.to(torch.{name_of(out.dtype)})` on the integers says so"
    facts = facts_of(event.site, event.name, (source.dtype, out.dtype), out.dtype, size_of(out), advice)
    audit.suspect(RULE, event, source, **facts).find(audit, Severity.INFO)


@on("scalar", RULE)
def reduced(event: Op, audit: Recorder) -> None:
    """A loss is one number; in float32 it is as it should be."""
    if event.out.dtype is torch.float32:
        _close_promotion(event.out, audit)


@on("ended", RULE)
@on("after", RULE, ops=_ENDS)
def ended(event: Op, audit: Recorder) -> None:
    """What autocast too would compute in float32, or what gives integers and bools."""
    for tensor in event.inputs:
        for promoted in open_promotions(tensor, audit, torch.float32):
            promoted.close(settled=False)


@around(Tensor, "tolist", "numpy", rule=RULE, always=True)
def _leaves_torch(audit: Recorder, original: Callable[..., Any], self: Tensor, *args: Any, **kwargs: Any) -> Any:
    if audit.promotions and not audit.local.paused:
        audit.guarded(_close_promotion, self, audit)
    return original(self, *args, **kwargs)


def _close_promotion(tensor: Tensor, audit: Recorder) -> None:
    for promoted in open_promotions(tensor, audit, torch.float32):
        promoted.close()


@on("left", RULE)
def leaves_module(call: Call, audit: Recorder) -> None:
    """What a module gives is not what it was given."""
    if audit.promotions:
        for _, tensor in tensors_in(call.output):
            if tensor.dtype is torch.float32:
                for promoted in open_promotions(tensor, audit, torch.float32):
                    promoted.harm()


@on("end", RULE)
def judge(audit: Recorder) -> None:
    for row in rows(audit):
        facts = {}
        if row.both_half:
            facts = {"pair": "float16 and bfloat16", "advice": f"{MADE}`.to` the dtype of the other"}
        if row.own:
            wide, narrow = name_of(row.wide), name_of(row.narrow)
            facts = {"advice": f"{MADE}`.to(torch.{wide})` on the {narrow} operand: the model is so"}
        elif row.autocast:
            half, wide = map(name_of, row.pair)
            why = "(autocast leaves sums and products of elements to promotion)"
            back = f"else `.to(torch.{half})` on the result"
            facts = {"advice": f"leave it, where {wide} is meant, as in a residual stream {why}; {back}"}
        at_birth = row.own or not row.autocast
        if not facts and any(one.op in _OF_ANGLES for node in row.nodes[:1] for one in node.ancestors()):
            wide, narrow = map(name_of, row.pair[::-1])
            cast = f"`.to(torch.{narrow})` on the {wide} operand here, or on the result"
            facts, at_birth = {"advice": f"{cast}: angles stay in {wide}, their sines and cosines need not"}, False
        if not row.creeps:
            tell(RULE, row, audit, at_birth=at_birth, **facts)
