"""Where shares do not explain an error: modules are really kept in float32, half of them at a time."""

import heapq
import itertools
from collections.abc import Callable, Sequence

Trial = Callable[[list[str]], float]  # the error with these modules in float32

RUNS = 16


def bisect(trial: Trial, units: list[str], error: float, first: Sequence[str] = ()) -> tuple[dict[str, float], int]:
    """What keeping single modules saves of the error², and how many runs it took.

    The group that saves most is split first.

    Args:
        trial: runs the model with some modules in float32, and gives the error.
        units: the modules, in the model's order.
        error: with none of them.
        first: those that are run by themselves before all groups.
    """
    saved = {name: 1 - (trial([name]) / error) ** 2 for name in first}
    runs, counter = len(saved), itertools.count()
    waiting = [(0.0, next(counter), units)]
    while waiting and runs < RUNS:
        _, _, group = heapq.heappop(waiting)
        middle = max(1, len(group) // 2)
        for half in (group[:middle], group[middle:]):
            if not half or runs >= RUNS or (len(half) == 1 and half[0] in saved):
                continue
            runs += 1
            gain = 1 - (trial(half) / error) ** 2
            if len(half) == 1:
                saved[half[0]] = gain
            else:
                heapq.heappush(waiting, (-gain, next(counter), half))
    return saved, runs
