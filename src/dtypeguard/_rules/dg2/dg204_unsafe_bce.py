"""DG204 unsafe-bce."""

from .._kit import Rule, Severity
from .._refusals import Refused, Turn, explains

RULE = Rule(
    "DG204",
    "unsafe-bce",
    Severity.ERROR,
    summary="`binary_cross_entropy` is refused under autocast.",
    says="`{what}`: {reason}",
    fix="leave out the sigmoid and use `binary_cross_entropy_with_logits` (`nn.BCEWithLogitsLoss`)",
    why=(
        "The logarithm of a half probability is infinite long before that of a float32 one, so autocast "
        "refuses `binary_cross_entropy` on a GPU."
    ),
    unsafe=("float32_island",),
    converts=False,
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#prefer-binary-cross-entropy-with-logits-over-binary-cross-entropy",
    ),
)


@explains(Turn.MESSAGE)
def refused(it: Refused) -> bool:
    return "unsafe to autocast" in it.event.reason and it.tell(RULE)
