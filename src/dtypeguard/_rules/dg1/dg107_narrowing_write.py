"""DG107 narrowing-write."""

from .._kit import Op, Program, Recorder, Rule, Severity, name_of, on
from ._writes import expression, source_of

RULE = Rule(
    "DG107",
    "narrowing-write",
    Severity.INFO,
    summary="A tensor is written into one of a narrower dtype, and loses digits or its imaginary part.",
    says="`{what}` writes {source} into a {dtype} tensor{loss}",
    fix="allocate the target in the dtype of what is written to it: {advice}",
    why=(
        "A tensor that is written to keeps its dtype, and what is written is cast to it: complex values "
        "lose their imaginary part (PyTorch warns once in a process), wide floats their digits."
    ),
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


BAD = [
    Program(
        """\
import torch

spectrum = torch.tensor([1 + 2j, 3 - 1j])
padded = torch.zeros(4)
padded[:2] = spectrum
""",
        at=5,
        prints="`padded[:2] = spectrum` writes complex64 into a float32 tensor: the imaginary parts of 2 of 2 "
        "values are lost",
        severity=Severity.ERROR,
        fix=(
            "allocate the target in the dtype of what is written to it: `dtype=torch.complex64`, or write "
            "`.real` where it is meant"
        ),
    ),
    Program(
        """\
import torch

rows = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
buffer = torch.zeros(2, 3)
buffer[0] = rows
""",
        at=5,
        prints="`buffer[0] = rows` writes float64 into a float32 tensor, rounded",
    ),
    Program(
        """\
import torch

weight = torch.ones(4).bfloat16()
update = torch.full((4,), 0.1)
for _ in range(4):
    weight.add_(update)
""",
        at=6,
        prints="`weight.add_(update)` writes float32 into a bfloat16 tensor, rounded",
    ),
]
GOOD = [
    Program(
        """\
import torch

spectrum = torch.tensor([1 + 2j, 3 - 1j])
padded = torch.zeros(4, dtype=spectrum.dtype)
padded[:2] = spectrum
"""
    ),
    Program(
        """\
import torch

spectrum = torch.tensor([1 + 2j, 3 - 1j])
padded = torch.zeros(4)
padded[:2] = spectrum.real
"""
    ),
    Program(
        """\
import torch

total = torch.zeros(4)
for _ in range(4):
    total += torch.ones(4).bfloat16()
"""
    ),
]
