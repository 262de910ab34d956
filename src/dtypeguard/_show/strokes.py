"""What pictures are drawn with: scales, lines, texts that do not meet. Across in percent, down in px."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

NARROW = 350.0  # px: a picture on the narrowest screen
SIZE, LETTER, LINE = 12, 6.6, 16  # px: of text, the width of a letter, the height of a line
_TICKS = 6
_STEPS = {0: (1, 2, 2.5, 5, 10), 2: (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), 10: (1, 2, 3, 5, 10, 20, 50, 100)}

Box = tuple[float, float, float, float]  # left, top, right and bottom, in px of the narrowest picture
Lines = Iterator[str]


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale: linear, or logarithmic with base 2 or 10. Its ends are those of the values, unless they are given."""

    title: str = ""
    log: int = 0
    low: float | None = None
    high: float | None = None
    said: Callable[[float], str] | None = None  # what a tick is called


class Scale:
    """Where values of an axis stand, between two places; what cannot stand there (NaN, 0 of a logarithm) at an end."""

    def __init__(self, axis: Axis, values: Iterable[float], start: float, end: float) -> None:
        self.axis, self.start, self.end = axis, start, end
        there = [self._along(value) for value in values if self.shows(value)] or [0.0]
        low, high = min(there), max(there)
        if axis.log == 10:
            low, high = math.floor(low + 1e-9), math.ceil(high - 1e-9)
        low = low if axis.low is None else self._along(axis.low)
        high = high if axis.high is None else self._along(axis.high)
        self.low, self.high = low, high if high > low else low + 1

    def __call__(self, value: float) -> float:
        if value != value or value == -math.inf or (self.axis.log and value <= 0):
            return self.start
        along = self.high if value == math.inf else self._along(value)
        share = (min(max(along, self.low), self.high) - self.low) / (self.high - self.low)
        return short(self.start + (self.end - self.start) * share)

    def shows(self, value: float) -> bool:
        """Whether it is a number that the axis can have."""
        return math.isfinite(value) and (value > 0 or not self.axis.log)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Values, and what they are called."""
        log, span = self.axis.log, self.high - self.low
        unit = 1.0 if log else 10.0 ** math.floor(math.log10(span / _TICKS))
        step = next((unit * s for s in _STEPS[log] if span / (unit * s) <= _TICKS), unit * _STEPS[log][-1])
        for count in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1):
            exponent = count * step
            value = float(log) ** min(exponent, math.inf if log == 10 else 1023) if log else exponent
            said = {0: f"{value:g}", 2: f"2^{exponent:g}", 10: f"{value:g}"}[log]
            yield value, said if self.axis.said is None else self.axis.said(value)

    def _along(self, value: float) -> float:
        return {0: float, 2: math.log2, 10: math.log10}[self.axis.log](value)


def short(value: float) -> float:
    """A coordinate."""
    return round(value, 2)


def cut(text: str, room: float) -> str:
    """A text that has so many px; the end of a name says most."""
    letters = int(room / LETTER)
    if len(text) <= letters:
        return text
    return f"\N{HORIZONTAL ELLIPSIS}{text[len(text) - letters + 1 :]}" if letters > 2 else ""


HALO = ' stroke="var(--ground)" stroke-width="3" paint-order="stroke"'  # of a text that lines run through


def text(
    x: float, y: float, said: str, anchor: str = "start", colour: str = "quiet", told: str = "", more: str = ""
) -> str:
    """A text, which may tell more when pointed at; nothing for an empty one."""
    if not said:
        return ""
    inside = escape(said) + (f"<title>{escape(told)}</title>" if told and told != said else "")
    return f'<text x="{short(x)}%" y="{short(y)}" text-anchor="{anchor}" fill="var(--{colour})"{more}>{inside}</text>'


def rect(x: float, y: float, width: float, height: float, colour: str, told: str = "") -> str:
    inside = f"<title>{escape(told)}</title>" if told else ""
    at = f'x="{short(x)}%" y="{short(y)}" width="{short(width)}%" height="{short(height)}"'
    return f'<rect {at} fill="var(--{colour})">{inside}</rect>'


def line(x: tuple[float, float], y: tuple[float, float], colour: str, dashed: bool = False) -> str:
    more = ' stroke-dasharray="4 3"' if dashed else ""
    (x1, x2), (y1, y2) = x, y
    return f'<line x1="{x1}%" x2="{x2}%" y1="{y1}" y2="{y2}" stroke="var(--{colour})"{more}/>'


def path(points: Sequence[tuple[float, float]], height: float, colour: str) -> str:
    """A line through points."""
    at = " ".join(f"{x},{y}" for x, y in points)
    return (
        f'<svg width="100%" height="{height}" viewBox="0 0 100 {height}" preserveAspectRatio="none">'
        f'<polyline points="{at}" fill="none" stroke="var(--{colour})" stroke-width="2" '
        'vector-effect="non-scaling-stroke"/></svg>'
    )


def below(scale: Scale, y: float, title: str) -> Lines:
    """The ticks of an axis across, and its title."""
    yield line((scale.start, scale.end), (y, y), "edge")
    for value, said in scale.ticks():
        x = scale(value)
        yield line((x, x), (y, y + 4), "edge")
        yield text(x, y + 16, said, _side(x, said, "middle"))
    yield text(scale.end, y + 32, title, "end")


def above(scale: Scale, y: float, title: str) -> Lines:
    """The same, above what it measures."""
    yield text(scale.start, y - 24, title)
    for value, said in scale.ticks():
        x = scale(value)
        yield text(x, y - 7, said, _side(x, said, "middle"))
        yield line((x, x), (y - 4, y), "edge")
    yield line((scale.start, scale.end), (y, y), "edge")


def keys(colours: Iterable[tuple[str, str]], y: float) -> tuple[float, list[str]]:
    """What colours mean, in as many lines as it needs; with their height."""
    x, top, found = 0.0, y, list[str]()
    for colour, said in colours:
        wide = LETTER * len(said) + 30
        if x and x + wide > NARROW:
            x, y = 0.0, y + LINE
        found.append(f'<rect x="{short(x)}" y="{y + 2}" width="10" height="10" rx="2" fill="var(--{colour})"/>')
        found.append(f'<text x="{short(x + 15)}" y="{y + 11}" fill="var(--quiet)">{escape(said)}</text>')
        x += wide
    return (y + LINE - top if found else 0.0), found


# --- texts that must not meet ---------------------------------------------------------------------------------------


def _side(x: float, said: str, anchor: str) -> str:
    """An anchor that keeps a text in the picture."""
    half = LETTER * len(said) / 2
    at = x * NARROW / 100
    return "start" if at < half else "end" if at > NARROW - half else anchor


def _box(x: float, y: float, said: str, anchor: str) -> Box:
    left = x * NARROW / 100 - LETTER * len(said) * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
    return left, y - SIZE, left + LETTER * len(said), y + 3


def _meets(one: Box, others: Iterable[Box]) -> bool:
    return any(one[0] < o[2] and o[0] < one[2] and one[1] < o[3] and o[1] < one[3] for o in others)


def lanes(limits: Sequence[tuple[float, str]]) -> list[tuple[str, int]]:
    """For labels above lines that stand at x: the anchor, and in which line of text each is."""
    taken, found = list[Box](), list[tuple[str, int]]()
    for x, said in limits:
        anchor, lane = _side(x, said, "middle"), 0
        while _meets(_box(x, lane * LINE, f"{said} ", anchor), taken):
            lane += 1
        taken.append(_box(x, lane * LINE, f"{said} ", anchor))
        found.append((anchor, lane))
    return found


def along(corners: Sequence[tuple[float, float]]) -> Iterator[Box]:
    """Boxes on a line through corners, which labels should not hide."""
    places = [(x * NARROW / 100, y) for x, y in corners]
    for (x, y), (right, below) in itertools.pairwise(places):
        count = 1 + int(max(abs(right - x), abs(below - y)) / 4)
        for n in range(count + 1):
            at, down = x + (right - x) * n / count, y + (below - y) * n / count
            yield at - 1, down - 1, at + 1, down + 1


def named(at: tuple[float, float], said: str, colour: str, taken: list[Box], lines: list[Box], within: Box) -> str:
    """The label of a point, beside or near it: where it meets no other, and hides no line if there is such a place."""
    sides = [(dx, dy, anchor) for dy in (-7, 15, -22, 30) for dx, anchor in ((2.0, "start"), (-2.0, "end"))]
    for others in ([*taken, *lines], taken):
        for dx, dy, anchor in (*sides, (0.0, -11, "middle"), (0.0, 21, "middle")):
            x, y = at[0] + dx, at[1] + dy
            box = _box(x, y, said, anchor)
            inside = all(a <= b for a, b in zip((*within[:2], *box[2:]), (*box[:2], *within[2:]), strict=True))
            if inside and not _meets(box, others):
                taken.append(box)
                return text(x, y, said, anchor, colour, more=HALO)
    return ""
