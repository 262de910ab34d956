"""DG201 half-leaves-autocast."""

from .._kit import HALF, Rule, Severity, name_of
from .._refusals import Refused, Turn, explains

RULE = Rule(
    "DG201",
    "half-leaves-autocast",
    Severity.ERROR,
    summary="A half tensor leaves autocast and meets a float32 operand.",
    says="`{what}` gets {dtype}, which left an autocast region{born}, and {other}: it was refused",
    fix="`.float()` on what leaves the region, or let the region reach this line",
    why="What autocast computes stays in half when the region ends. Outside, nothing is cast any more.",
    safe=("cast_operands",),
    converts=False,
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#autocasting",
        "https://github.com/shawntan/scattermoe/issues/17",
    ),
)


@explains(Turn.AUTOCAST)
def refused(it: Refused) -> bool:
    left = [] if it.event.autocast else it.autocasts
    if not left or left[0].node is None:
        return False
    others = " and ".join(sorted(map(name_of, it.floats - HALF))) or "other dtypes"
    born = f" at {left[0].node.birth.site}"
    return it.tell(RULE, left, dtype=name_of(left[0].dtype), born=born, other=f"meets {others}")
