"""DG107 narrowing-write."""

from .._kit import Op, Recorder, Rule, Severity, name_of, on
from ._writes import expression, source_of

RULE = Rule(
    "DG107",
    "narrowing-write",
    Severity.INFO,
    summary="A write to a tensor of narrower dtype loses digits.",
    says="`{what}` writes {source} into a {dtype} tensor{loss}",
    fix="allocate the target in the dtype of what is written to it: {advice}",
    why=(
        "A tensor that is written to keeps its dtype, and what is written is cast to it: complex values "
        "lose their imaginary part (PyTorch warns once in a process), wide floats their digits."
    ),
    unsafe=("fitting_target",),
    sources=(
        "https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc",
        "https://github.com/MagriLab/KolSol/issues/30",
    ),
)


@on("write", RULE)
def narrowed(event: Op, audit: Recorder) -> None:
    source, out, severity = source_of(event, audit), event.out, None
    if source is None:
        return
    if source.is_complex() and not out.is_complex():
        lost = int((source.imag != 0).sum())
        loss = f": the imaginary parts of {lost} of {source.numel()} values are lost"
        advice = f"`dtype=torch.{name_of(source.dtype)}`, or write `.real` where it is meant"
        severity = Severity.ERROR if lost else None
    elif source.is_floating_point() and out.is_floating_point() and source.dtype.itemsize > out.dtype.itemsize:
        loss, advice = ", rounded", f"`dtype=torch.{name_of(source.dtype)}`, or cast where it is meant"
    else:
        return
    facts = {"source": name_of(source.dtype), "dtype": name_of(out.dtype), "loss": loss, "advice": advice}
    audit.suspect(RULE, event, source, what=expression(event), **facts).find(audit, severity)
