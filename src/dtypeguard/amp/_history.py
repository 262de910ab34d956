"""What a watch measured, over the steps of a run: as data, as lines of text and as a picture."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from .._show.fragment import table
from .._show.result import Drawn, Row, plain
from .._show.svg import Axis, Chart, Limit, Series, Stack
from .._show.text import limit, spark
from ._metrics import quantile

_NONE = 0.25  # stands for no update where heights are logarithms: a spacing is the smallest there is
_COLUMNS, _NAME, _NUMBER = 80, 18, 10  # of a text


@dataclass(frozen=True, slots=True)
class Moment(Row):
    """What was measured at one step.

    Attributes:
        step: which step of its optimizer it was.
        scale: the scale of the GradScaler; None without one.
        unmoved: the share (0 to 1) of elements with a non-zero gradient that did not move.
        low: what 10 % of |update| are below, in spacings of the parameter's dtype at its value.
        update: what half of them are below.
        high: what 90 % of them are below.
    """

    step: int
    scale: float | None
    unmoved: float | None
    low: float | None
    update: float | None
    high: float | None


def moments_of(rows: Iterable[tuple[int, Sequence[int], float | None]]) -> Iterator[Moment]:
    """From the steps, the counts of their histograms, and the scales."""
    for step, counts, scale in rows:
        total = sum(counts)
        quantiles = (quantile(counts, share) if total else None for share in (0.1, 0.5, 0.9))
        yield Moment(step, scale, counts[0] / total if total else None, *quantiles)


class History(Drawn):
    """What a watch measured: `Watch.history`.

    Attributes:
        moments (tuple[Moment, ...]): one for each step that was measured; of a long run every second, fourth, ... of
            these, so that there are at most 512.
    """

    kind = "history"

    def __init__(self, moments: Iterable[Moment] = (), why: str = "") -> None:
        self.moments: tuple[Moment, ...] = tuple(moments)
        self._why = why  # there is none

    def __iter__(self) -> Iterator[Moment]:
        return iter(self.moments)

    def __len__(self) -> int:
        return len(self.moments)

    def __repr__(self) -> str:
        return f"<history of {len(self.moments)} steps>"

    def __str__(self) -> str:
        if not self.moments:
            return f"no step was measured: {self._why}" if self._why else "no step was measured"
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        steps = [moment.step for moment in self.moments]
        room = _COLUMNS - _NAME - 2 * _NUMBER - 2
        yield f"{'step':<{_NAME}}{steps[0]:>{_NUMBER}} {'':{room}} {steps[-1]}"
        for name, of, height in _LINES:
            values = [of(moment) for moment in self.moments]
            known = [value for value in values if value is not None]
            if known:
                shown = [values[n * (len(values) - 1) // max(1, room - 1)] for n in range(room)]
                shown = values if len(values) < room else shown
                strip = spark(_levels(shown, height))
                yield f"{name:<{_NAME}}{limit(_short(known[0])):>{_NUMBER}} {strip:{room}} {limit(_short(known[-1]))}"

    def _data(self) -> dict[str, Any]:
        return {"moments": [plain(moment) for moment in self.moments]}

    def _picture(self) -> Stack:
        steps = [float(one.step) for one in self.moments]
        x = Axis("step", low=min(steps, default=None), high=max(steps, default=None))
        scales = [(float(one.step), one.scale) for one in self.moments if one.scale is not None]
        unmoved = [(float(one.step), one.unmoved) for one in self.moments if one.unmoved is not None]
        shares = Axis(low=0.0, high=1.0, said=lambda share: f"{100 * share:g} %")
        charts = [
            Chart("unmoved elements", x, shares, [Series(unmoved)]),
            Chart(
                "update, in spacings of the parameter's dtype", x, Axis(log=2, low=_NONE, said=_spacings),
                list(self._updates()), limits=[Limit(1.0, "one spacing")],
            ),
        ]  # fmt: skip
        if scales:
            charts.insert(0, Chart("scale of the GradScaler", x, Axis(log=2), [Series(scales, shape="steps")]))
        return Stack("what precision did to the steps", charts)

    def _updates(self) -> Iterator[Series]:
        for name, says, colour in _SHARES:
            points = [(float(one.step), getattr(one, name)) for one in self.moments]
            yield Series([(x, y or _NONE) for x, y in points if y is not None], says, colour)

    def _cell(self) -> tuple[Any, ...]:
        names = [field.name for field in fields(Moment)]
        return "history", table("", names, [[getattr(one, name) for name in names] for one in self.moments], "step")


_SHARES = (("high", "90 % are below", "f6"), ("update", "half are below", "link"), ("low", "10 % are below", "f3"))
_Height = Callable[[float], float]


def _log(value: float) -> float:
    return math.log2(value or _NONE)


_LINES: tuple[tuple[str, Callable[[Moment], float | None], _Height], ...] = (
    ("scale", lambda one: one.scale, _log),
    ("unmoved", lambda one: one.unmoved, float),
    ("update (median)", lambda one: one.update, _log),
)


def _levels(values: Sequence[float | None], height: _Height) -> list[float | None]:
    """Heights as shares: the lowest is the first level above none, and what does not change is in the middle."""
    heights = [None if value is None else height(value) for value in values]
    known = [one for one in heights if one is not None]
    low, span = min(known), max(known) - min(known)
    return [None if one is None else max((one - low) / span, 1e-9) if span else 0.5 for one in heights]


def _short(value: float) -> float:
    return float(f"{value:.4g}") if value < 10_000 else value


def _spacings(value: float) -> str:
    return "" if 0 < value - _NONE < 0.75 else f"{value:g}" if value > _NONE else "0"


for _public in (History, Moment):
    _public.__module__ = "dtypeguard.results"
