"""Interleaved timing: each candidate runs once a round, so that a slow spell of the machine hits all alike."""

import math
import statistics
import timeit
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter_ns
from typing import Any

Case = tuple[Callable[..., Any], tuple[Any, ...]]  # what is called, and with what

_SLICE = 1_000_000  # ns that a candidate runs in one round
_FEWEST = 15  # rounds


@dataclass(frozen=True)
class Samples:
    """ns per call of each candidate, one figure a round."""

    rounds: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.rounds[name])

    def extra(self, name: str, base: str) -> float:
        """Median over the rounds of the difference to `base`."""
        pairs = zip(self.rounds[name], self.rounds[base], strict=True)
        return statistics.median(value - other for value, other in pairs)

    def ratio(self, name: str, base: str) -> float:
        """Median over the rounds of the ratio to `base`."""
        pairs = zip(self.rounds[name], self.rounds[base], strict=True)
        return statistics.median(value / other for value, other in pairs)


def interleave(cases: Mapping[str, Case], seconds: float) -> Samples:
    """Round after round, in turn, for about `seconds` in all; garbage collection is off inside a slice."""
    timers = {name: _timer(call, args) for name, (call, args) in cases.items()}
    calls = {}
    for name, timer in timers.items():
        timer.timeit(3)
        calls[name] = max(1, round(_SLICE / _estimate(timer)))
    slices = {name: max(_SLICE, timer.timeit(1)) for name, timer in timers.items()}
    count = max(_FEWEST, int(seconds * 1e9 / sum(slices.values())))
    rounds: dict[str, list[float]] = {name: [] for name in timers}
    order = list(timers)
    for _ in range(count):
        order.append(order.pop(0))
        for name in order:
            rounds[name].append(timers[name].timeit(calls[name]) / calls[name])
    return Samples(rounds)


def _timer(call: Callable[..., Any], args: tuple[Any, ...]) -> timeit.Timer:
    names = [f"a{n}" for n in range(len(args))]
    return timeit.Timer(
        f"call({', '.join(names)})",
        timer=perf_counter_ns,
        globals={"call": call, **dict(zip(names, args, strict=True))},
    )


def _estimate(timer: timeit.Timer) -> float:
    """ns per call, roughly."""
    once = max(1, int(timer.timeit(1)))
    number = min(200, max(1, _SLICE // once))
    return min(timer.timeit(number) / number for _ in repeat(None, 3))


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))
