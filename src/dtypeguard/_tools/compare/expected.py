"""The errors that shares expect of what they leave of an error, as runs have corrected them."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

Point = tuple[float, float]


class Expected:
    """The error over what is left of the error²: through what was measured, and on with its square root.

    More that is left costs no less: a set that was expected to be better than it is counts for all that should be
    worse.
    """

    def __init__(self, measured: Iterable[Point]) -> None:  # what shares leave, and the error that a run has shown
        self._points, worst = list[Point](), 0.0
        for rest, error in sorted(measured):
            if rest > 0 and 0 < error < math.inf:
                worst = max(worst, error)
                self._points.append((math.log(rest), math.log(worst)))

    def error(self, rest: float) -> float:
        """The error of what leaves so much."""
        return math.exp(_through(self._points, math.log(rest), 0.5)) if rest > 0 and self._points else 0.0

    def rest(self, error: float) -> float:
        """How much may be left for an error."""
        if not error > 0 or not self._points:
            return 0.0
        return math.exp(min(_through([(y, x) for x, y in self._points], math.log(error), 2.0), 0.0))


def _through(points: Sequence[Point], x: float, slope: float) -> float:
    """On the line through points, which goes on with a slope at both ends."""
    place = bisect_left(points, x, key=lambda point: point[0])
    (left, low), (right, high) = points[max(place - 1, 0)], points[min(place, len(points) - 1)]
    if place in (0, len(points)):
        return low + slope * (x - left) if place else high + slope * (x - right)
    return low + (high - low) * (x - left) / (right - left)
