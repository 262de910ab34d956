"""DG203 autocast-leaves-operation."""

import re

from .._kit import HALF, Rule, Severity
from .._refusals import Refused, Turn, explains

RULE = Rule(
    "DG203",
    "autocast-leaves-operation",
    Severity.ERROR,
    summary="Under autocast, an operation gets operands of two dtypes.",
    says="`{what}` under autocast was refused: {reason}",
    fix="cast one side: {advice}",
    why=(
        "Autocast casts the operands of the operations on its lists. Writing by index, scattering and most "
        "factories are on none: a float32 canvas does not take half predictions."
    ),
    safe=(
        "float32_at_birth",
        "cast_operands",
    ),
    converts=False,
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference",
        "https://github.com/open-mmlab/mmdetection3d/issues/1842",
    ),
)


_BY_INDEX = re.compile(
    r"Index put|index_put|scatter|index_add|index_copy|masked_scatter|torch\.cat|Expected self\.dtype"
)


@explains(Turn.AUTOCAST)
def refused(it: Refused) -> bool:
    if not it.event.autocast:
        return False
    if _BY_INDEX.search(it.event.reason) and it.floats & HALF:
        advice = "make the target like the values: `values.new_zeros(...)`, or cast: `values.to(target.dtype)`"
        return it.tell(RULE, advice=advice)
    advice = "`.float()` on what autocast made half, or `.to(x.dtype)` on the other"
    return bool(it.autocasts) and it.tell(RULE, advice=advice)
