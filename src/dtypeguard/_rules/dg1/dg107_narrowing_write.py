"""DG107 narrowing-write."""

from torch import Tensor

from .._kit import LARGEST, Op, Recorder, Rule, Severity, name_of, on
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
        "values to a real dtype, as where all of a checkpoint becomes bfloat16, drops the imaginary part too."
    ),
    unsafe=("fitting_target",),
    sources=(
        "https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
        "https://github.com/MagriLab/KolSol/issues/30",
    ),
)
_REAL = 1e-3  # an imaginary part, as a share of the largest value: what a Fourier transform leaves is less


@on("cast", RULE)
def dropped(event: Op, audit: Recorder) -> None:
    """`table.to(torch.bfloat16)` of complex numbers."""
    source, dtype = event.inputs[0], event.out.dtype
    if not source.is_complex() or dtype.is_complex or not event.readable or source.numel() > LARGEST:
        return
    if loss := _loss(source):
        advice = f"keep it in {name_of(source.dtype)}, or write `.real` where it is meant"
        facts = {"does": f"makes {name_of(dtype)} of {name_of(source.dtype)}", "loss": loss, "advice": advice}
        audit.suspect(RULE, event, source, what=expression(event), **facts).find(audit, Severity.ERROR)


@on("write", RULE)
def narrowed(event: Op, audit: Recorder) -> None:
    source, out, severity = source_of(event, audit), event.out, None
    if source is None:
        return
    if source.is_complex() and not out.is_complex():
        loss = _loss(source)
        advice = f"`dtype=torch.{name_of(source.dtype)}`, or write `.real` where it is meant"
        severity = Severity.ERROR if loss else None
    elif source.is_floating_point() and out.is_floating_point() and source.dtype.itemsize > out.dtype.itemsize:
        loss, advice = ", rounded", f"`dtype=torch.{name_of(source.dtype)}`, or cast where it is meant"
    else:
        return
    does = f"writes {name_of(source.dtype)} into a {name_of(out.dtype)} tensor"
    facts = {
        "does": does,
        "loss": loss,
        "advice": f"allocate the target in the dtype of what is written to it: {advice}",
    }
    audit.suspect(RULE, event, source, what=expression(event), **facts).find(audit, severity)


def _loss(source: Tensor) -> str:
    """What is said of the imaginary parts that are lost, if there are any."""
    lost = int((source.imag.abs() > _REAL * source.abs().max()).sum()) if source.numel() else 0
    return f": the imaginary parts of {lost} of {source.numel()} values are lost" if lost else ""
