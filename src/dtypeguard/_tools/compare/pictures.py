"""What comparisons are as pictures: error against what is kept, against bits, or from input to output."""

import itertools
import math
from collections.abc import Iterable
from typing import Any

from ..._show.svg import Axis, Chart, Limit, Mark, Series
from ..._show.text import percent
from ..formats.table import format_of
from .bars import number
from .text import LARGE, of_whole

_LITTLE = 0.1  # of the parameters: where most of the error is gone by then, the axis is logarithmic
HUES = 8  # colours of formats, `f0` and on

Point = tuple[float, float]


def of_comparison(data: dict[str, Any]) -> Chart:
    """From `Comparison.to_dict()`: what keeping parameters would give, if shares tell it; else the error over depth."""
    title, kept = f"{data['model']} in {data['dtype'] or data['region']}", data["kept"]
    if len(data["curve"]) < 2:
        return _of_depth(data, title)
    return _of_shares(data["curve"], kept, f"{title}: error against parameters in {data['wide']}", data["wide"])


def of_kept(data: dict[str, Any]) -> Chart:
    """From `Kept.to_dict()`."""
    return _of_shares(data["curve"], data, f"error against parameters in {data['wide']}", data["wide"])


def of_formats(data: dict[str, Any]) -> Chart:
    """From `FormatComparison.to_dict()`: each format, and what was chosen."""
    formats = {data["format"]: data, **data["by_format"]}
    marks = [
        Mark(format_of(title).bits, float(one["error"]), title, f"f{place % HUES}")
        for place, (title, one) in enumerate(formats.items())
    ]
    return _of_bits(data["placed"], f"{data['model']}: error against bits a weight", marks)


def of_placed(data: dict[str, Any]) -> Chart:
    """From `Placed.to_dict()`."""
    return _of_bits(data, "error against bits a weight")


def knee(points: list[Point]) -> Point | None:
    """The point that is farthest below the line between the ends, on bits against log error; None if none is below."""
    (left, first), (right, last) = points[0], points[-1]
    if right <= left:
        return None
    slope = math.log(last / first) / (right - left)
    below = [slope * (bits - left) - math.log(error / first) for bits, error in points]
    most = max(below)
    return points[below.index(most)] if most > 1e-9 else None


def _of_shares(curve: Iterable[Any], kept: dict[str, Any] | None, title: str, wide: str) -> Chart:
    marks = []
    if kept is not None:
        share, error = kept["parameters"], float(kept["error"])
        marks.append(Mark(share, error, f"kept: {of_whole(share)}, error {number(error)}", size=6))
    points = _points(curve)
    little = [point for point in points if point[0] < _LITTLE]
    narrow = any(share for share, _ in little) and little[-1][1] ** 2 < points[0][1] * points[-1][1]
    low = min((share for share, _ in little if share), default=0.0) / 2
    low = low if narrow else 0.0
    x = Axis(f"of the parameters in {wide}", 10 if narrow else 0, low, 1.0, percent)
    series = Series(
        [(max(share, low), error) for share, error in points], "expected from the shares, or measured", shape="steps"
    )
    return Chart(title, x, _errors("output error"), [series], marks)


def _of_bits(placed: dict[str, Any] | None, title: str, marks: Iterable[Mark] = ()) -> Chart:
    points, marks, series = [] if placed is None else _points(placed["curve"]), [*marks], list[Series]()
    if placed is not None:
        error = float(placed["error"])
        marks.insert(0, Mark(placed["bits"], error, f"chosen: {placed['bits']:.3g} bits, {number(error)}", size=7))
    if len(points) > 1:
        series.append(Series(points, "expected of the best choice with so many bits"))
        if (bend := knee(points)) is not None:
            marks.append(Mark(*bend, f"knee: {bend[0]:.3g} bits, {number(bend[1])}", hollow=True))
    return Chart(title, Axis("bits a weight"), _errors("output error"), series, marks)


def _of_depth(data: dict[str, Any], title: str) -> Chart:
    steps = [(float(place), float(step["error"]), step["name"]) for place, step in enumerate(data["depth"], 1)]
    points = [(place, error) for place, error, _ in steps]
    above = (Mark(x, y, f"first above 1 % at {name}") for x, y, name in steps if name and y > LARGE)
    marks = list(itertools.islice(above, 1))
    y = _errors("error of a module's output")
    series = [Series(points, shape="steps")]
    return Chart(f"{title}: error from input to output", Axis("modules"), y, series, marks, [Limit(LARGE, "1 %")])


def _errors(title: str) -> Axis:
    """An axis of errors: its title has the unit, which each tick has no room for."""
    return Axis(f"{title} (%)", log=10, said=lambda value: f"{100 * value:g}")


def _points(curve: Iterable[Any]) -> list[Point]:
    """Those of a curve that a logarithm holds."""
    return sorted((float(x), float(error)) for x, error in curve if 0 < float(error) < math.inf)
