"""Which cause is mended first, and which ones are mended with another one."""

from ..._engine.watch.rule import RULES
from ..._show.report.causes import Cause, names, settles

_LATER = {"DG103": -1, "DG108": 1, "DG105": 1, "DG102": 2, "DG110": 3, "DG201": 3, "DG203": 3, "DG205": 3}

# Where one of these is found, others may be what comes of it, and are mended there.
_ROOTS = frozenset(["DG102", "DG501", "DG503", "DG504", "DG602"])


def comes_of(cause: Cause, root: Cause) -> bool:
    """Whether one finding names the line of the other."""
    if root.rule not in _ROOTS:
        return settles(root, cause)
    if root.rule == "DG602" and cause.rule in ("DG101", "DG102"):
        return True
    if rank(cause) <= rank(root):
        return False
    place = (root.first.site or "").partition(", in ")[0]
    return names(root, cause) or f"{place}," in " ".join(cause.first.origin) + cause.first.message


def rank(cause: Cause) -> tuple[bool, int]:
    """Causes before what comes of them: values of a wrong dtype, then what they do, then what is refused for it."""
    return bool(RULES[cause.rule].follows), _LATER.get(cause.rule, 1 if cause.rule.startswith("DG9") else 0)
