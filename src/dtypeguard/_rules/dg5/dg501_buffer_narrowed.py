"""DG501 buffer-narrowed."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.batchnorm import _NormBase

from ..._core.base.dtypes import HALF
from ..._core.base.modules import tensors_below
from ..._engine.values.rows import Row
from .._kit import LARGEST, Conversion, Op, Recorder, Rule, Severity, on, readable, size_of
from ..dg1.dg108_positions_collide import NOISE
from ..dg9._harm import share, would_be
from ._stays import Stays, enter_all

RULE = Rule(
    "DG501",
    "buffer-narrowed",
    Severity.INFO,
    summary="A module's conversion narrows one of its buffers.",
    says="{which} of {module}: converted from {was} to {dtype}{effect}",
    fix="{kept}",
    why=(
        "`Module.to(dtype)` converts every floating buffer. Frequencies, statistics and tables are small, "
        "and need the digits."
    ),
    asks=("DG101", "DG102"),
    unsafe=("buffers_stay",),
    sources=(
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.to",
        "https://github.com/huggingface/transformers/issues/25681",
    ),
)

_MULTIPLIES = frozenset(["mul", "mm", "bmm", "cat", "stack", "clone", "repeat", "_to_copy", "index", "index_select"])
_EQUAL = 1.01  # times the position that another value was multiplied by
_FAR = 32  # lines between a buffer and angles


@on("converted", RULE)
def narrowed(event: Conversion, audit: Recorder) -> None:
    found = []
    for path, module, kind, name, buffer in tensors_below(event.model):
        was, dtype = event.before.get((path, name)), buffer.dtype
        if kind == "buffer" and was is not None and was.itemsize > dtype.itemsize:
            where = event.site, event.inside(path), name, f"Module.{event.name}"
            stays = Stays(RULE, kind, *where, was, dtype, size_of(buffer))
            stays.whole = _whole(module)
            stays.rounded = _rounded(event.values.get((path, name)), buffer)
            found.append((path, buffer, stays))
    enter_all(audit, event, found)


def _whole(module: Module) -> str:
    """The class of PyTorch's that a module is of, where its parameters must have the dtype of its buffers."""
    names = [kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.nn.modules.")]
    if isinstance(module, _NormBase) or type(module).__module__.startswith("torch.nn."):
        return next((name for name in names if hasattr(torch.nn, name)), "")
    return ""


def _rounded(before: Tensor | None, buffer: Tensor) -> tuple[Tensor, Tensor] | None:
    """The values of a buffer with one axis, and how far each was rounded, as a share of it."""
    if before is None or buffer.dtype not in HALF or before.shape != buffer.shape or not readable(before, buffer):
        return None
    if not 0 < buffer.numel() == buffer.shape[-1:].numel():
        return None
    values, after = (one.detach().flatten().double().cpu().abs() for one in (before, buffer))
    return values, ((after - values) / values).abs()


@on("after", RULE, ops=["sin", "cos", "sincos"])
def angles(event: Op, audit: Recorder) -> None:
    """Angles in a wide dtype are as coarse as the frequencies that they are multiples of."""
    source = event.inputs[0]
    if event.backward or source.dtype in HALF or not source.ndim or not 0 < source.numel() <= LARGEST:
        return
    for stays in _scaled(source, audit):
        if stays.rounded and not stays.said and event.readable and audit.due("DG501", event.site, event.name):
            largest = source.detach().abs().reshape(-1, source.shape[-1]).amax(0).double().cpu()
            off = _off_by(largest, *stays.rounded)
            if NOISE <= off < math.inf:
                stays.blame(audit, f"angles up to {float(largest.max()):g} are off by up to {off:.2g} at {event.site}")


def _scaled(angles: Tensor, audit: Recorder) -> Iterator[Stays]:
    """The buffers that angles are multiples of."""
    node = audit.lineage.get(angles)
    nodes = [] if node is None else [node]
    for node in nodes:
        if isinstance(node.cause, Stays):
            yield node.cause
        elif node.op in _MULTIPLIES and len(nodes) < _FAR:
            nodes += node.parents


def _off_by(angles: Tensor, values: Tensor, rounded: Tensor) -> float:
    """By how much angles are off, if they are products of these values and of the same positions for each value."""
    off, count = 0.0, len(values)
    for places in () if len(angles) % count else (angles.reshape(-1, count), angles.reshape(count, -1).T):
        positions = places / values
        if bool((positions.amax(1) <= _EQUAL * positions.amin(1)).all()):
            off = max(off, float((places * rounded).max()))
    return off


@on("amplified", RULE)
def amplified(row: Row, audit: Recorder) -> None:
    """Something made a large error of the digits that a buffer has lost, whatever reads the result."""
    lost = row.rounded()
    if row.node is None or lost is None:
        return
    for cause in [node.cause for node in row.node.ancestors()]:
        if isinstance(cause, Stays) and cause.rule is RULE and cause.site.key == lost.site.key:
            cause.blame(audit, f"an error of {share(row.error)} at {row}: {would_be(row)}")
