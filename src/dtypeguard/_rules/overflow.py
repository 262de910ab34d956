"""DG105, DG111, DG113: values that leave their dtype at either end, and masks that mask nothing."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .._base.dtypes import name_of
from .._watch.events import Op, on, readable
from .._watch.looks import LARGEST, Looks
from .._watch.operations import trait_of
from .._watch.recorder import Recorder
from .._watch.rule import Severity
from .._watch.sites import Site
from .._watch.text import size_of

_UP = "`.float()` on what goes in, and back to half when the values fit"
_CLAMP = "clamp to `torch.finfo(dtype).min` and `.max` first; build masks from the dtype they are used in"
_ADDITIVE = frozenset(["add", "add_", "sub", "sub_", "baddbmm", "addmm"])
_ADDED = frozenset(["add", "add_", "clamp", "clamp_min", "clamp_min_", "maximum"])
_DIVISIONS = frozenset(["div", "log", "reciprocal", "rsqrt", "pow"])
_SMALLEST = 2.0**-25  # what is smaller is 0 in float16
_SOFTMAX = ["_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax"]
_ATTENTION = [
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
]  # fmt: skip


@dataclass(eq=False)
class Masked:
    """Only below the dtype's end, as masks do it: harmless, unless a whole row is."""

    site: Site
    facts: dict[str, Any]
    fields: dict[str, Any]


@dataclass(eq=False)
class Vanished:
    """A number that is 0 in the dtype it was added in."""

    site: Site
    value: float
    module: str | None


@on("cast", "DG105")
def narrowed(event: Op, audit: Recorder) -> None:
    """A cast to a dtype that ends earlier."""
    source, out = event.inputs[0], event.out
    if not (source.dtype.is_floating_point and out.dtype.is_floating_point) or event.backward:
        return
    if _end(out.dtype) >= _end(source.dtype) or not event.readable:
        return
    if audit.state(Looks).due("DG105", event.site, out.dtype):
        values = source.float() if source.dtype.itemsize < 4 else source  # float8 has few operations, and some NaN only
        _overflow(event, ~out.float().isfinite() & values.isfinite(), values, _CLAMP, audit)


def _end(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max


@on("half", "DG105", "DG113")
def computed(event: Op, audit: Recorder) -> None:
    """What an operation gave in float16; done again in float32 where it is infinite."""
    out = event.out
    if not event.readable or not trait_of(event.func).pure or not event.inputs:
        return
    _epsilons(event, audit)
    if event.name.startswith(("empty", "new_empty")) or not audit.state(Looks).due("DG105", event.site, event.name):
        return
    infinite = out.isinf()
    if not bool(infinite.any()) or any(isinstance(a, float) and math.isinf(a) for a in event.args):
        return
    if any(not bool(t.isfinite().all()) for t in event.inputs if t.is_floating_point()):
        return
    again = event.func(*map(_wider, event.args), **{key: _wider(value) for key, value in event.kwargs.items()})
    if isinstance(again, Tensor) and again.dtype is not torch.float16:
        values = again if event.name in _ADDITIVE else again.abs()
        _overflow(event, infinite & again.isfinite(), values, _UP, audit)


@on("after", "DG105", ops=["_foreach_norm"])
def norms(event: Op, audit: Recorder) -> None:
    """Of gradients, that are clipped by it: by an infinite one to zero."""
    results = [t for t in event.out if isinstance(t, Tensor)] if isinstance(event.out, (list, tuple)) else []
    if not results or results[0].dtype is not torch.float16 or not readable(*event.inputs, *results):
        return
    if audit.state(Looks).due("DG105", event.site, event.name):
        wrong = [
            t for t, norm in zip(event.inputs, results, strict=False) if bool(norm.isinf()) and bool(t.isfinite().all())
        ]
        if wrong:
            facts = {
                "what": event.site.expression or event.name, "count": sum(t.numel() for t in wrong),
                "total": sum(t.numel() for t in event.inputs), "dtype": "float16", "largest": _end(torch.float16),
                "advice": "clip gradients of float32 parameters",
            }  # fmt: skip
            audit.find(
                "DG105", event.site, module=event.module, op=event.name, facts=facts, from_dtype=torch.float16,
                to_dtype=torch.float16, bytes=sum(map(size_of, wrong)), origin=audit.origin_of(wrong[0]),
            )  # fmt: skip


def _epsilons(event: Op, audit: Recorder) -> None:
    """DG113: a number that is 0 in float16, and a division or logarithm for which it was put there."""
    if event.name in _ADDED:
        small = [a for a in event.args if isinstance(a, float) and 0 < abs(a) < _SMALLEST]
        node = audit.lineage.get(event.out)
        if small and node is not None:
            node.cause = Vanished(event.site, small[0], event.module)
    elif event.name in _DIVISIONS and audit.state(Looks).due("DG113", event.site, event.name):
        wrong = int((~event.out.isfinite()).sum())
        nodes = [node for tensor in event.inputs if (node := audit.lineage.get(tensor)) is not None] if wrong else []
        for cause in (ancestor.cause for node in nodes for ancestor in node.ancestors(8)):
            if isinstance(cause, Vanished):
                use = event.site.expression or event.name
                facts = {"what": cause.site.expression, "value": cause.value, "use": use, "count": wrong}
                audit.find(
                    "DG113", cause.site, module=cause.module, op=event.name, facts=facts,
                    from_dtype=torch.float16, bytes=size_of(event.out),
                )  # fmt: skip


def _wider(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype is torch.float16 else value
    if isinstance(value, list):
        return [_wider(part) for part in value]
    return torch.float32 if value is torch.float16 else value


def _overflow(event: Op, lost: Tensor, values: Tensor, advice: str, audit: Recorder) -> None:
    """`lost` says which of the results are infinite, and should be as in `values`."""
    count = int(lost.sum())
    if not count:
        return
    source, out = event.inputs[0], event.out
    facts = {
        "what": event.site.expression or event.name, "count": count, "total": out.numel(),
        "dtype": name_of(out.dtype), "largest": _end(out.dtype), "advice": advice,
    }  # fmt: skip
    fields: dict[str, Any] = {
        "module": event.module, "op": event.name, "from_dtype": source.dtype, "to_dtype": out.dtype,
        "bytes": size_of(out), "origin": audit.origin_of(source),
    }  # fmt: skip
    only_mask = bool((values[lost] < 0).all())
    audit.find("DG105", event.site, facts=facts, severity=Severity.INFO if only_mask else None, **fields)
    node = audit.lineage.get(out)
    if only_mask and node is not None:
        node.cause = Masked(event.site, {**facts, "advice": f"{_UP}, or keep the mask bool"}, fields)


@on("after", "DG105", "DG111", ops=[*_SOFTMAX, *_ATTENTION])
def softmax(event: Op, audit: Recorder) -> None:
    """NaN, if a mask has hidden a whole row; and whether a mask of 0 and 1 was added."""
    out = event.out[0] if isinstance(event.out, tuple) else event.out
    nodes = [node for tensor in event.inputs if (node := audit.lineage.get(tensor)) is not None]
    causes = [ancestor.cause for node in nodes for ancestor in node.ancestors(16)]
    for cause in causes:
        if isinstance(cause, Added):
            audit.find("DG111", cause.site, facts=cause.facts, **cause.fields)
    if any(isinstance(cause, Masked) for cause in causes) and readable(out) and bool(out.isnan().any()):
        for cause in causes:
            if isinstance(cause, Masked):
                audit.find("DG105", cause.site, facts=cause.facts, **cause.fields)


# ---------------------------------------------------------------- DG111


@dataclass(eq=False)
class Added:
    """Scores to which 0 and 1 were added; a mask, if softmax follows."""

    site: Site
    facts: dict[str, Any]
    fields: dict[str, Any]


@on("mixed", "DG111")
def integers_added(event: Op, audit: Recorder) -> None:
    """The mask of a tokenizer."""
    mask, node = event.kept[0], audit.lineage.get(event.out)
    if (
        event.name == "add"
        and node is not None
        and not mask.is_floating_point()
        and _zero_and_one(mask, event.site, audit)
    ):
        facts, fields = _mask_facts("the mask", mask, "softmax", audit)
        node.cause = Added(event.site, facts, {**fields, "module": event.module, "op": event.name})


@on("start", "DG111")
def replace(audit: Recorder) -> None:
    for name, masks in (
        ("multi_head_attention_forward", ("key_padding_mask", "attn_mask")),
        ("scaled_dot_product_attention", ("attn_mask",)),
    ):
        audit.patches.replace(F, name, partial(_attention, audit, masks))


def _attention(audit: Recorder, masks: tuple[str, ...], original: Callable[..., Any]) -> Callable[..., Any]:
    places = {"scaled_dot_product_attention": {3: "attn_mask"}}.get(original.__name__, {})
    inside: list[str] = audit.state(Inside).names

    @wraps(original)
    def attention(*args: Any, **kwargs: Any) -> Any:
        if audit.live and not audit.local.paused and not inside:
            for name, mask in (*((places.get(n), a) for n, a in enumerate(args)), *kwargs.items()):
                if name in masks and isinstance(mask, Tensor) and mask.is_floating_point():
                    audit.guarded(_look_at_mask, audit, name, mask, original.__name__)
        inside.append(original.__name__)
        try:
            return original(*args, **kwargs)
        finally:
            inside.pop()

    return attention


class Inside:
    """One attention calls the other."""

    def __init__(self) -> None:
        self.names: list[str] = []


def _look_at_mask(audit: Recorder, name: str, mask: Tensor, function: str) -> None:
    site = audit.here()
    if _zero_and_one(mask, site, audit):
        facts, fields = _mask_facts(name, mask, function, audit)
        audit.find("DG111", site, facts=facts, module=audit.module(), op=function, **fields)


def _zero_and_one(mask: Tensor, site: Site, audit: Recorder) -> bool:
    """Whether it holds nothing else, and both."""
    if not readable(mask) or not 1 < mask.numel() <= LARGEST or not audit.state(Looks).due("DG111", site):
        return False
    ones = int((mask == 1).sum())
    return 0 < ones < mask.numel() and ones + int((mask == 0).sum()) == mask.numel()


def _mask_facts(name: str, mask: Tensor, function: str, audit: Recorder) -> tuple[dict[str, Any], dict[str, Any]]:
    code = "mask" if " " in name else name
    caution = "; where 1 means keep, `~` it for `key_padding_mask`" if name == "key_padding_mask" else ""
    facts = {"argument": name, "code": code, "function": function, "dtype": name_of(mask.dtype), "caution": caution}
    fields = {"from_dtype": mask.dtype, "to_dtype": torch.bool, "bytes": size_of(mask), "origin": audit.origin_of(mask)}
    return facts, fields
