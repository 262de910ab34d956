"""DG111 mask-is-added."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..._engine.ops import SOFTMAX
from ..._engine.watch.events import Suspect
from ..._engine.watch.text import operand
from .._kit import LARGEST, Op, Recorder, Rule, Severity, Site, around, name_of, on, readable, size_of

RULE = Rule(
    "DG111",
    "mask-is-added",
    Severity.WARNING,
    summary="A mask of zeros and ones is added to scores.",
    says="{argument} of {function} is {dtype} and holds only 0 and 1: it is added to the scores, and masks nothing",
    fix="{advice}",
    why=(
        "Attention takes two kinds of masks. A bool mask hides, a float mask is added to the scores: a 1 "
        "in it makes a position a little more likely."
    ),
    unsafe=("bool_mask",),
    sampled=True,
    sources=("https://github.com/pytorch/pytorch/issues/92554",),
)

_MASKS = {
    "multi_head_attention_forward": ("key_padding_mask", "attn_mask"),
    "scaled_dot_product_attention": ("attn_mask",),
}


_FAR, _NEAR = 16, 2  # lines to softmax


class Added(Suspect):
    """Scores to which 0 and 1 were added; a mask, if softmax follows."""


@on("mixed", RULE)
def integers_added(event: Op, audit: Recorder) -> None:
    """The mask of a tokenizer."""
    mask = event.kept[0]
    scores = any(tensor.ndim and tensor is not mask for tensor in event.inputs)  # not a number: classes become factors
    if event.name == "add" and scores and not mask.is_floating_point() and _zero_and_one(mask, event.site, audit):
        fields = {"module": event.module, "op": event.name}
        added = _added("the mask", mask, "softmax", event.site, audit, _names(event, mask), **fields)
        audit.lineage.mark(event.out, added)


def _names(event: Op, mask: Tensor) -> tuple[str, str]:
    """How the program writes the scores and the mask, if that is known."""
    codes = event.site.operands(event.name.rstrip("_"), len(event.inputs)) if event.direct else []
    written = {one is mask: operand(code) for one, code in zip(event.inputs, codes, strict=True)} if codes else {}
    return written.get(False) or "scores", written.get(True) or "mask"


class AddedAtOnce(Added):
    """The same of floats and bools, which may be anything else: softmax follows at once."""


@on("added", RULE)
def mask_added(event: Op, audit: Recorder) -> None:
    """`scores + mask`, of bools, or of floats for many heads or samples."""
    mask = next((tensor for tensor in event.inputs if tensor.dtype is torch.bool), event.inputs[1])
    fits = mask.shape[-1:] == event.out.shape[-1:] and event.out.is_floating_point()
    masks = mask.is_floating_point() or mask.dtype is torch.bool
    if fits and masks and _zero_and_one(mask, event.site, audit):
        fields = {"module": event.module, "op": event.name}
        added = _added("the mask", mask, "softmax", event.site, audit, _names(event, mask), **fields)
        audit.lineage.mark(event.out, AddedAtOnce(added.rule, added.site, added.facts, added.fields))


@on("after", RULE, ops=SOFTMAX)
def softmax(event: Op, audit: Recorder) -> None:
    for cause in audit.lineage.causes(event.inputs, _FAR):
        if isinstance(cause, Added) and not isinstance(cause, AddedAtOnce):
            cause.find(audit)
    for cause in audit.lineage.causes(event.inputs, _NEAR):
        if isinstance(cause, AddedAtOnce):
            cause.find(audit)


@dataclass
class Inside:
    """One attention calls the other."""

    calls: int = 0


@around(F, *_MASKS, rule=RULE)
def _attention(audit: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    inside, function = audit.state(Inside), original.__name__
    places = {3: "attn_mask"} if function == "scaled_dot_product_attention" else {}
    if not inside.calls:
        for name, mask in (*((places.get(n), a) for n, a in enumerate(args)), *kwargs.items()):
            if name in _MASKS[function] and isinstance(mask, Tensor) and mask.is_floating_point():
                audit.guarded(_look_at_mask, audit, name, mask, function)
    inside.calls += 1
    try:
        return original(*args, **kwargs)
    finally:
        inside.calls -= 1


def _look_at_mask(audit: Recorder, name: str, mask: Tensor, function: str) -> None:
    site = audit.here()
    if _zero_and_one(mask, site, audit):
        _added(name, mask, function, site, audit, module=audit.module(), op=function).find(audit)


def _zero_and_one(mask: Tensor, site: Site, audit: Recorder) -> bool:
    """Whether it holds nothing else, and both; what is trained is no mask."""
    if mask.requires_grad or not readable(mask) or not 1 < mask.numel() <= LARGEST or not audit.due("DG111", site):
        return False
    ones = int((mask == 1).sum())
    return 0 < ones < mask.numel() and ones + int((mask == 0).sum()) == mask.numel()


def _added(
    name: str, mask: Tensor, function: str, site: Site, audit: Recorder, names: tuple[str, str] = ("scores", "mask"),
    **fields: Any,
) -> Added:  # fmt: skip
    """A mask that is added; `names` is how the program writes the scores and the mask."""
    advice = f"hide with it: `{names[0]}.masked_fill({names[1]} == 0, float('-inf'))`, where 0 is what to hide"
    if name in ("attn_mask", "key_padding_mask"):
        caution = "; where 1 means keep, `~` it for `key_padding_mask`" if name == "key_padding_mask" else ""
        advice = f"give a bool mask: `{name}.bool()`{caution}"
    facts = {"argument": name, "function": function, "dtype": name_of(mask.dtype), "advice": advice}
    fields |= {"from_dtype": mask.dtype, "to_dtype": torch.bool, "bytes": size_of(mask)}
    return Added(RULE, site, facts, {**fields, "origin": audit.origin_of(mask)})
