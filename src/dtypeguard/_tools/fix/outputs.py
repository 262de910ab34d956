"""What two runs print: whether it is the same but for numbers, and whether the numbers are nearly the same."""

import math
import re
from collections.abc import Iterable, Sequence

from .program import Run

_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?:nan|inf)\b)|\b(?:True|False)\b|0x[0-9a-f]+"
)
_KIND = r"(?:torch\.)?(?:b?float(?:16|32|64)|int(?:8|16|32|64)|uint8|bool|complex(?:64|128))\b"
_DTYPE = re.compile(rf"(, dtype={_KIND})|\b{_KIND}")
_BEFORE_IT_ENDS = 3  # lines that a program may print of the exception that ends it
_WHOLE = 2048  # from which on float16 lacks whole numbers: there each one counts


def skeletons_agree(base: Run, run: Run, before: Sequence[str], after: Sequence[str]) -> bool:
    """Whether a run prints what the one before did, but for numbers and names of dtypes; more, if that ended early.

    A runner of tests, whose status tells that some fail, prints less where more of them pass.
    """
    if base.status and not base.error and run.status in (0, base.status):
        return True
    if count_nonfinite(after) > count_nonfinite(before):
        return False
    old, new = (list(map(_skeleton, lines)) for lines in (before, after))
    if run.error or run.stopped or base.stopped:
        return old[: len(new)] == new or new[: len(old)] == old
    if base.error:
        return any(
            new[: len(old) - more] == old[: len(old) - more] for more in range(min(_BEFORE_IT_ENDS, len(old)) + 1)
        )
    return new == old


def _skeleton(line: str) -> str:
    """A line without its numbers and dtypes; the dtype of a tensor is only printed where it is not the default."""
    plain = _DTYPE.sub(lambda found: "" if found[1] else "D", line)
    return re.sub(r"\s+|(?<=0)\.(?=[,\])])", "", _NUMBER.sub("0", plain))


def near(old: Sequence[str], new: Sequence[str], nearly: float) -> bool:
    """Whether the numbers in lines are nearly the same."""
    for one, other in zip(old, new, strict=False):
        for a, b in zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=False):
            try:
                x, y = float(a.replace("_", "")), float(b.replace("_", ""))
            except ValueError:  # True, 0x7f
                continue
            least = 0.0 if x.is_integer() and abs(x) > _WHOLE and "." not in a else nearly  # an id, a time
            if abs(x - y) > least * max(abs(x), abs(y), 1e-6) and math.isfinite(x):
                return False
    return True


def count_nonfinite(lines: Iterable[str]) -> int:
    """How many infinite values and NaN were printed."""
    return sum(len(re.findall(r"\b(?:nan|inf)\b", line)) for line in lines)
