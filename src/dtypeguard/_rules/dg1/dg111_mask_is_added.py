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
from .._kit import Op, Recorder, Rule, Severity, Site, around, name_of, on, readable, size_of, some

RULE = Rule(
    "DG111",
    "mask-is-added",
    Severity.WARNING,
    summary="An attention mask does not hide what it should.",
    says="{argument} of {function} is {dtype} and {harm}",
    fix="{advice}",
    why=(
        "Attention takes two kinds of masks. A bool mask hides, a float mask is added to the scores: a 1 "
        "in it makes a position a little more likely. `scaled_dot_product_attention` takes True for what takes part, "
        "and a float mask has 0 there, which is False."
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


class Inverted(Suspect):
    """A bool tensor that is True where a float mask hides."""


_HIDDEN = -1e4  # and what is below, in a mask that is added
_COMPARISONS = ("ne", "lt", "le", "eq")
_HANDS_ON = frozenset(["_to_copy", "bitwise_and", "logical_and", "clone", "cat", "index", "repeat"])


@on("cast", RULE)
@on("after", RULE, ops=_COMPARISONS)
def read_as_bool(event: Op, audit: Recorder) -> None:
    """`mask.bool()` and `mask != 0` of a mask with 0 where tokens are."""
    if event.out.dtype is not torch.bool or len(event.inputs) != 1 or not event.inputs[0].is_floating_point():
        return
    mask = event.inputs[0]
    if not event.readable or mask.numel() < 2 or not audit.due("DG111", event.site):
        return
    mask, out = some(mask), some(event.out)
    hidden = mask <= _HIDDEN
    if 0 < int(hidden.sum()) < mask.numel() and bool((hidden | (mask == 0)).all()) and torch.equal(out, hidden):
        codes = event.site.operands(event.site.calls, 1 if event.site.calls == "bool" else 2) if event.direct else []
        written = operand(codes[0]) if codes else "mask"
        facts = {
            "argument": "attn_mask", "function": "scaled_dot_product_attention", "dtype": "bool",
            "harm": f"True where the {name_of(mask.dtype)} mask is {mask.min():.3g}: only what it hides takes part",
            "advice": f"True is what takes part: write `{written} == 0`, or give the float mask as it is",
        }  # fmt: skip
        fields = {"module": event.module, "op": event.name, "from_dtype": mask.dtype, "to_dtype": torch.bool}
        audit.lineage.mark(event.out, Inverted(RULE, event.site, facts, {**fields, "bytes": size_of(event.out)}))


@on("after", RULE, ops=("logical_not_", "bitwise_not_"))
def inverted_again(event: Op, audit: Recorder) -> None:
    audit.lineage.mark(event.out, None)


def _look_at_bool(audit: Recorder, mask: Tensor) -> None:
    nodes = [node for node in [audit.lineage.get(mask)] if node is not None]
    for node in nodes:
        if isinstance(node.cause, Inverted):
            node.cause.find(audit)
            return
        if node.op in _HANDS_ON and len(nodes) < _FAR:
            nodes += [parent for parent in node.parents if parent.dtype is torch.bool]


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
            if name not in _MASKS[function] or not isinstance(mask, Tensor):
                continue
            if mask.is_floating_point():
                audit.guarded(_look_at_mask, audit, name, mask, function)
            elif places:  # others take True for what to hide
                audit.guarded(_look_at_bool, audit, mask)
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
    if mask.requires_grad or not readable(mask) or mask.numel() < 2 or not audit.due("DG111", site):
        return False
    mask = some(mask)
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
    harm = "holds only 0 and 1: it is added to the scores, and masks nothing"
    facts = {"argument": name, "function": function, "dtype": name_of(mask.dtype), "harm": harm, "advice": advice}
    fields |= {"from_dtype": mask.dtype, "to_dtype": torch.bool, "bytes": size_of(mask)}
    return Added(RULE, site, facts, {**fields, "origin": audit.origin_of(mask)})
