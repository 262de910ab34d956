"""DG505 device-refused."""

from .._kit import Rule, Severity
from .._refusals import Refused, Turn, explains

RULE = Rule(
    "DG505",
    "device-refused",
    Severity.ERROR,
    summary="The tensors of one operation are on several devices.",
    says="`{what}` was refused: {reason}{operands}",
    fix="move one of them: {advice}",
    why=(
        "Tensors of one operation are on one device. A state that is built in the loop, or an attribute "
        "that `.to()` does not reach, stays on the CPU."
    ),
    safe=("same_device",),
    converts=False,
    sources=("https://github.com/pytorch/pytorch/issues/10658",),
)


@explains(Turn.DEVICE)
def refused(it: Refused) -> bool:
    advice = "`.to(x.device)`; a tensor that belongs to a module is a buffer of it"
    return it.devices and it.tell(RULE, advice="`.cpu()` on the lengths" if "lengths" in it.event.reason else advice)
