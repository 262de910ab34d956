"""What a program does where it asks a ghost yes or no: each answer is tried, one for each line.

`if x.isinf().any(): x = x.clamp(...)` has two paths, and both are run. A path that ends in an exception which Python
code raises is what the program itself does with such values (`if (x < 0).any(): raise ValueError`), so it does not
count beside one that does not end so.
"""

import dis
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Any, TypeVar

from ..._engine.watch.sites import here

T = TypeVar("T")
MOST = 8  # paths
_AGAIN = 100  # times that one line may ask


class Unknown(BaseException):
    """The run cannot go on. No program catches it, for it derives from BaseException."""


def unknown(why: str) -> Unknown:
    """The end of a run, with the line that is running."""
    return Unknown(f"{here()}: {why}")


class Decisions:
    """The answers of one run, by line; what was not asked before is answered with no."""

    def __init__(self, answers: dict[Hashable, bool]) -> None:
        self.answers = dict(answers)
        self.asked: dict[Any, int] = {}  # how often each line did

    def decide(self, site: Any) -> bool:
        self.asked[site] = count = self.asked.get(site, 0) + 1
        if count > _AGAIN:
            raise Unknown(f"{site}: asks again and again for a value that is not computed")
        return self.answers.setdefault(site.key, False)


def paths(run: Callable[[Decisions], T]) -> list[T]:
    """What each path comes to; raises Unknown if there are too many."""
    waiting: list[dict[Hashable, bool]] = [{}]
    found: list[T] = []
    while waiting:
        given = waiting.pop(0)
        decisions = Decisions(given)
        found.append(run(decisions))
        so_far = dict(given)
        for line in [line for line in decisions.answers if line not in given]:
            waiting.append({**so_far, line: True})
            so_far[line] = False
        if len(found) + len(waiting) > MOST:
            raise Unknown(f"more than {MOST} paths depend on values that are not computed")
    return found


def raised_by_python(trace: TracebackType | None) -> bool:
    """Whether an exception comes from a `raise`, and not from a kernel."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"
