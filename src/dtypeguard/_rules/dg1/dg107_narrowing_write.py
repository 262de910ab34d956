"""DG107 narrowing-write."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..._core.base.dtypes import TABLE
from ..._engine.watch.events import Loading
from .._kit import Node, Op, Recorder, Rule, Severity, Suspect, name_of, of, on, some
from ._writes import expression, source_of

RULE = Rule(
    "DG107",
    "narrowing-write",
    Severity.INFO,
    summary="A write to a tensor of narrower dtype loses digits.",
    says="`{what}` {does}{loss}",
    fix="{advice}",
    why=(
        "A tensor that is written to keeps its dtype, and what is written is cast to it: complex values "
        "lose their imaginary part (PyTorch warns once in a process), wide floats their digits. A cast of complex "
        "values to a real dtype, as where all of a checkpoint becomes bfloat16, drops the imaginary part too. It is a "
        "warning where a model in the wider dtype loads what was rounded so, as from a template in the wrong dtype."
    ),
    unsafe=("fitting_target", "cast_at_birth"),
    sources=(
        "https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
        "https://github.com/MagriLab/KolSol/issues/30",
    ),
)
_COPIES, _ADDS = frozenset(["copy_", "index_put_"]), frozenset(["add_", "sub_"])
_MOST = 4096  # writes
_REAL = 1e-3  # an imaginary part, as a share of the largest value: what a Fourier transform leaves is less


@dataclass
class Rounded:
    """The writes that rounded, by the node of what was written to."""

    writes: dict[Node, Suspect] = field(default_factory=dict)


@on("cast", RULE)
def dropped(event: Op, audit: Recorder) -> None:
    """`table.to(torch.bfloat16)` of complex numbers."""
    source, dtype = event.inputs[0], event.out.dtype
    if not source.is_complex() or dtype.is_complex or not event.readable:
        return
    if loss := _loss(source):
        advice = f"keep it in {name_of(source.dtype)}, or write `.real` where it is meant"
        facts = {"does": f"makes {name_of(dtype)} of {name_of(source.dtype)}", "loss": loss, "advice": advice}
        audit.suspect(RULE, event, source, what=expression(event), **facts).find(audit, Severity.ERROR)


@on("write", RULE)
def narrowed(event: Op, audit: Recorder) -> None:
    source, out, severity = source_of(event, audit), event.out, None
    node = audit.lineage.get(out)
    if source is None or (node is not None and node.site is event.site):
        return  # made and written by one call of PyTorch: autocast casts the weights of a recurrent kernel
    wide = f"allocate the target in the dtype of what is written to it: `dtype=torch.{name_of(source.dtype)}`"
    if source.is_complex() and not out.is_complex():
        loss = _loss(source)
        advice = f"{wide}, or write `.real` where it is meant"
        severity = Severity.ERROR if loss else None
    elif source.is_floating_point() and out.is_floating_point() and source.dtype.itemsize > out.dtype.itemsize:
        loss, advice = ", rounded", f"{wide}, or cast where it is meant"
        if source.dtype is torch.float64:  # which few targets are meant to be
            advice = f"write `.to(torch.{name_of(out.dtype)})` where it is meant; else {wide}"
    elif source.dtype in audit.integers and out.is_floating_point() and _rounds_whole_numbers(event, source):
        loss = f", in which whole numbers above {2 ** TABLE[out.dtype].digits} are rounded"
        advice = f"{wide}, or cast where it is meant"
    else:
        return
    does = f"writes {name_of(source.dtype)} into a {name_of(out.dtype)} tensor"
    facts = {"does": does, "loss": loss, "advice": advice}
    suspect = audit.suspect(RULE, event, source, what=expression(event), **facts)
    suspect.find(audit, severity)
    if node is not None and severity is None and len(writes := audit.state(Rounded).writes) < _MOST:
        writes[node] = suspect


@on("loading", RULE)
def loaded(event: Loading, audit: Recorder) -> None:
    """A model in the wider dtype loads what was rounded on the way."""
    writes = audit.state(Rounded).writes
    nodes = (audit.lineage.get(event.state[name]) for name in event.names if writes)
    for node, suspect in [(node, writes[node]) for node in nodes if node in writes]:
        if suspect.fields["from_dtype"].itemsize >= event.dtype.itemsize > event.was.itemsize:
            facts = {**suspect.facts, "loss": f", rounded, and {event.path} loads it in {name_of(event.dtype)}"}
            fields = {**suspect.fields, "origin": node.line()}
            audit.find(RULE, suspect.site, severity=Severity.WARNING, facts=facts, again=True, **fields)


def _rounds_whole_numbers(event: Op, source: Tensor) -> bool:
    """Whether integers that are written, or a total of whole numbers that they are added to, are rounded."""
    out, name = event.out, event.name
    if name not in _COPIES | _ADDS or not min(source.numel(), out.numel()):
        return False
    source, out = some(source), some(out)
    if name in _COPIES:
        return bool((source.to(out.dtype).double() != source.double()).any())
    return float(out.abs().max()) > 2 ** TABLE[out.dtype].digits and bool((out == out.trunc()).all())


def _loss(source: Tensor) -> str:
    """What is said of the imaginary parts that are lost, if there are any."""
    looked = some(source)
    lost = int((looked.imag.abs() > _REAL * looked.abs().max()).sum()) if source.numel() else 0
    return f": the imaginary parts of {of(lost, looked, source)} values are lost" if lost else ""
