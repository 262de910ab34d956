"""DG206 fill-does-not-fit."""

import re

from .._kit import Rule, Severity
from .._refusals import Refused, Turn, explains

RULE = Rule(
    "DG206",
    "fill-does-not-fit",
    Severity.ERROR,
    summary="A fill value does not fit the tensor's dtype.",
    says="`{what}` was refused: {reason}",
    fix='use `torch.finfo(x.dtype).min` in place of a constant, or `float("-inf")`; `torch.iinfo` for integers',
    why=(
        "-1e9 and finfo(float32).min are no float16. In float32 the line works, under autocast or after "
        "`.half()` it does not."
    ),
    safe=("fill_of_dtype",),
    converts=False,
    sources=("https://github.com/huggingface/transformers/issues/17306",),
)

_SAYS = re.compile(r"cannot be converted to type .* without overflow")


@explains(Turn.MESSAGE)
def refused(it: Refused) -> bool:
    return bool(_SAYS.search(it.event.reason)) and it.tell(RULE)
