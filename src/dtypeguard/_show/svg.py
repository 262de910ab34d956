"""Pictures as SVG: a picture is data, `inline` and `alone` draw it; there is no script.

    Chart   lines, steps or a histogram over two axes, with marked points and limits
    Bars    one row for each name, with ranges on one axis and limits: dtypes' ranges by layer, bytes of a tree
    Matrix  coloured cells with two lines of text
    Stack   pictures below each other, each with its title

`inline(picture)` is an element of a page or a notebook's cell, whose `parts.css` gives the colours. `alone(picture)` is
a file: it has its title and its colours, those of light as attributes, which any viewer understands, those of dark by
`prefers-color-scheme`. A colour is the name of one in `parts.css`: "link", "above", "f0" to "f7", "good", "bad", ...

Across, everything stands in percent of the width, down in px, so text has 12 px in a page of any width. What must not
overlap is placed for the narrowest, 390 px. A file has this width, and an `<img>` scales it: text has 11 px there.
"""

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Protocol

from . import strokes
from .document import readable
from .strokes import HALO, LETTER, LINE, NARROW, Box, Lines, Scale, cut, keys, line, rect, short, text
from .strokes import Axis as Axis

_WIDTH = 390  # px: of a file
_LEFT, _RIGHT, _HIGH = 16.0, 97.0, 190.0  # of a chart: percent, percent, px
_ROW, _CELL = 32, 44  # px


@dataclass(frozen=True, slots=True)
class Series:
    """Points in the order of x: joined by a "line", by "steps" at each, or counts of bins ("bars") that begin there."""

    points: Sequence[tuple[float, float]]
    name: str = ""
    colour: str = "link"
    shape: str = "line"


@dataclass(frozen=True, slots=True)
class Mark:
    """A point with a label."""

    x: float
    y: float
    label: str = ""
    colour: str = "text"
    hollow: bool = False
    size: float = 4.5  # px, of its radius


@dataclass(frozen=True, slots=True)
class Limit:
    """A dashed line at a value of an axis, "x" or "y"."""

    at: float
    label: str = ""
    colour: str = "above"
    axis: str = "y"


@dataclass(frozen=True, slots=True)
class Row:
    """A name, indented by its depth, with pieces (start, end, colour); what it says stands on the right."""

    label: str
    pieces: Sequence[tuple[float, float, str]]
    says: str = ""
    depth: int = 0
    told: str = ""  # when pointed at


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell, coloured by what it is."""

    colour: str
    text: str = ""
    more: str = ""
    told: str = ""


class Picture(Protocol):
    """What can be drawn."""

    @property
    def title(self) -> str: ...

    def draw(self) -> tuple[float, Lines]:
        """The height, and what is in it."""
        ...


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines, steps or bars; a mark whose label would meet others on all sides is without one."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    limits: Sequence[Limit] = ()

    def draw(self) -> tuple[float, Lines]:
        points = [point for one in self.series for point in one.points] + [(mark.x, mark.y) for mark in self.marks]
        ends = {name: [limit.at for limit in self.limits if limit.axis == name] for name in "xy"}
        across = Scale(self.x, [x for x, _ in points] + ends["x"], _LEFT, _RIGHT)
        heads, top = _heads(self.limits, across, 22)
        floor = top + 6 + _HIGH
        zero = [0.0] if any(one.shape == "bars" for one in self.series) else []
        down = Scale(self.y, [y for _, y in points] + ends["y"] + zero, floor, top + 6)
        height, legend = keys([(one.colour, one.name) for one in self.series if one.name], floor + 40)
        return floor + 40 + height, self._inside(across, down, heads, legend)

    def _inside(self, across: Scale, down: Scale, heads: list[str], legend: list[str]) -> Lines:
        floor, top = down.start, down.end
        yield text(0, 12, self.y.title)
        for value, said in down.ticks():
            yield line((_LEFT, _RIGHT), (down(value), down(value)), "rule")
            yield text(_LEFT - 1.5, down(value) + 4, said, "end")
        yield from strokes.below(across, floor, self.x.title)
        for one in self.series:
            yield from _drawn(one, across, down)
        within = _LEFT * NARROW / 100, top - LINE, NARROW, floor
        taken, run = list[Box](), [box for one in self.series for box in strokes.along(_places(one, across, down))]
        for limit in (limit for limit in self.limits if limit.axis == "y" and down.shows(limit.at)):
            y = down(limit.at)
            yield line((_LEFT, _RIGHT), (y, y), limit.colour, dashed=True)
            yield strokes.named((_RIGHT, y), limit.label, "quiet", taken, run, within)
        yield from heads
        yield from _downs(self.limits, across, top, floor)
        shown = [mark for mark in self.marks if across.shows(mark.x) and down.shows(mark.y)]
        places = [(across(mark.x), down(mark.y)) for mark in shown]
        taken += [(x * NARROW / 100 - 5, y - 5, x * NARROW / 100 + 5, y + 5) for x, y in places]
        for mark, (x, y) in zip(shown, places, strict=True):
            fill = "ground" if mark.hollow else mark.colour
            yield (
                f'<circle cx="{x}%" cy="{y}" r="{mark.size}" fill="var(--{fill})" stroke="var(--{mark.colour})" '
                f'stroke-width="1.5"><title>{escape(mark.label)}</title></circle>'
            )
            yield strokes.named((x, y), mark.label, "text", taken, run, within)
        yield from legend


@dataclass(frozen=True, slots=True)
class Bars:
    """Rows below each other, all on one axis, which stands above them; limits are lines down through them."""

    title: str
    rows: Sequence[Row]
    x: Axis = field(default_factory=Axis)
    limits: Sequence[Limit] = ()
    keys: Sequence[tuple[str, str]] = ()  # colours, and what they mean

    def draw(self) -> tuple[float, Lines]:
        ends = [end for row in self.rows for piece in row.pieces for end in piece[:2]]
        across = Scale(self.x, ends + [limit.at for limit in self.limits], 0.5, 99.5)
        height, legend = keys(self.keys, 0)
        ticks = height + 2 * LINE + 4
        heads, top = _heads(self.limits, across, ticks + 2)
        floor = top + _ROW * len(self.rows) + 4
        return floor, self._inside(across, top, floor, [*legend, *strokes.above(across, ticks, self.x.title), *heads])

    def _inside(self, across: Scale, top: float, floor: float, others: list[str]) -> Lines:
        for value, _ in across.ticks():
            yield line((across(value), across(value)), (top, floor), "rule")
        yield from _downs(self.limits, across, top, floor)
        for place, row in enumerate(self.rows):
            y, indent = top + _ROW * place, 12 * row.depth
            label = cut(row.label, NARROW - LETTER * (len(row.says) + 2) - indent)
            yield text(0, y + 14, label, colour="text", told=row.told or row.label, more=f' dx="{indent}"{HALO}')
            yield text(100, y + 14, row.says, "end", more=HALO)
            for start, end, colour in row.pieces:
                left, right = sorted((across(start), across(end)))
                yield rect(left, y + 19, max(right - left, 0.4), 9, colour, row.told)
        yield from others


@dataclass(frozen=True, slots=True)
class Matrix:
    """Cells in rows and columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, str, Sequence[Cell]]]  # a name, what stands below it, the cells
    across: str = ""  # what columns are
    down: str = ""  # and rows
    keys: Sequence[tuple[str, str]] = ()

    def draw(self) -> tuple[float, Lines]:
        floor = 2 * LINE + _CELL * len(self.rows) + 4.0
        height, legend = keys(self.keys, floor + 4)
        return floor + 4 + height, self._inside(legend)

    def _inside(self, legend: list[str]) -> Lines:
        letters = max((len(name) for row in self.rows for name in row[:2]), default=0)
        left = min(35.0, 100 * (10 + LETTER * letters) / NARROW)
        step = (100 - left) / max(len(self.columns), 1)
        room, start = step * NARROW / 100 - 2, left * NARROW / 100 - 4
        yield text(left, 11, self.across)
        yield text(0, 28, self.down)
        for place, name in enumerate(self.columns):
            yield text(left + step * (place + 0.5), 28, cut(name, room), "middle", "text", name)
        for number, (name, more, cells) in enumerate(self.rows):
            y = 2 * LINE + 2 + _CELL * number
            yield text(0, y + (17 if more else 25), cut(name, start), "start", "text", name)
            yield text(0, y + 33, cut(more, start), told=more)
            for place, cell in enumerate(cells):
                x, told = left + step * place, cell.told or f"{cell.text} {cell.more}".strip()
                yield rect(x, y, step - 0.5, _CELL - 2, cell.colour, told)
                for said, at in ((cell.text, 17 if cell.more else 25), (cell.more, 33)):
                    yield text(x + step / 2 - 0.25, y + at, cut(said, room), "middle", "text", told)
        yield from legend


@dataclass(frozen=True, slots=True)
class Stack:
    """Pictures below each other, as when all are over the same steps."""

    title: str
    parts: Sequence[Picture]

    def draw(self) -> tuple[float, Lines]:
        drawn = [part.draw() for part in self.parts]
        return sum(height + 2 * LINE for height, _ in drawn), self._inside(drawn)

    def _inside(self, drawn: Sequence[tuple[float, Lines]]) -> Lines:
        top = 0.0
        for part, (height, inside) in zip(self.parts, drawn, strict=True):
            yield text(0, top + 14, cut(part.title, NARROW), colour="text", told=part.title)
            at = f'y="{top + 22}" width="100%" height="{short(height)}"'
            yield f'<svg {at} overflow="visible">{"".join(inside)}</svg>'
            top += height + 2 * LINE


def _heads(limits: Sequence[Limit], across: Scale, top: float) -> tuple[list[str], float]:
    """The labels of the lines down, and where they end."""
    at = [(across(limit.at), limit.label) for limit in limits if limit.axis == "x"]
    found = strokes.lanes(at)
    rows = [text(x, top + 12 + LINE * lane, said, side) for (x, said), (side, lane) in zip(at, found, strict=True)]
    return rows, top + LINE * (1 + max((lane for _, lane in found), default=-1))


def _downs(limits: Sequence[Limit], across: Scale, top: float, floor: float) -> Iterator[str]:
    for limit in limits:
        if limit.axis == "x":
            yield line((across(limit.at), across(limit.at)), (top, floor), limit.colour, dashed=True)


def _places(series: Series, across: Scale, down: Scale) -> list[tuple[float, float]]:
    """The corners of a line."""
    places = [(across(x), down(y)) for x, y in series.points if across.shows(x) and down.shows(y)]
    if series.shape != "steps":
        return places
    turns = (((x, before), (x, y)) for (_, before), (x, y) in itertools.pairwise(places))
    return [*places[:1], *itertools.chain.from_iterable(turns)]


def _drawn(series: Series, across: Scale, down: Scale) -> Iterator[str]:
    places = _places(series, across, down)
    if series.shape == "bars":
        ends = [*(x for x, _ in places[1:]), across.end]
        for (x, y), end in zip(places, ends, strict=True):
            yield rect(x, y, max(end - x - 0.2, 0.2), down.start - y, series.colour)
    elif places:
        yield strokes.path(places, down.start, series.colour)


# --- as text --------------------------------------------------------------------------------------------------------


def inline(picture: Picture) -> str:
    """The picture as an element of a page or a cell, which has the colours."""
    height, inside = picture.draw()
    label = f'class="picture" role="img" aria-label="{escape(picture.title)}"'
    return readable(f'<svg {label} width="100%" height="{short(height)}">{"".join(inside)}</svg>')


def alone(picture: Picture) -> str:
    """The picture as a file, with its title and its colours."""
    height, inside = picture.draw()
    titles = [line for line in _broken(picture.title) if line]
    top, dark = 17 * len(titles) + 20, dict[str, str]()
    head = (text(2, 20 + 17 * n, said, colour="text", more=' font-weight="600"') for n, said in enumerate(titles))

    def coloured(found: re.Match[str]) -> str:
        light, other = colours()[found[2]]
        dark[found[0]] = f'svg.picture [{found[1]}="{light}"]{{{found[1]}:{other}}}'
        return f'{found[1]}="{light}"'

    body = (
        f'<rect width="100%" height="100%" fill="var(--ground)"/>{"".join(head)}<svg x="2%" y="{top}" width="96%" '
        f'height="{short(height)}" overflow="visible">{"".join(inside)}</svg>'
    )
    body = re.sub(r'(fill|stroke)="var\(--([\w-]+)\)"', coloured, body)
    said, rules = escape(picture.title), "".join(dark[key] for key in sorted(dark))
    return readable(
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" role="img" aria-label="{said}" width="{_WIDTH}" '
        f'height="{short(top + height + 10)}" style="max-width:100%" font-size="12" '
        f'font-family="system-ui, sans-serif"><title>{said}</title>'
        f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>{body}</svg>\n"
    )


@functools.cache
def colours() -> dict[str, tuple[str, str]]:
    """The colours of pictures by their names: in light, in dark."""
    style = (Path(__file__).parent / "parts.css").read_text("utf-8")
    return {name: (light, dark) for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)", style)}


def _broken(title: str) -> list[str]:
    """A title in lines that the narrowest screen holds."""
    lines = [""]
    for word in title.split():
        lines[-1:] = [f"{lines[-1]} {word}".strip()] if len(lines[-1] + word) < 44 else [lines[-1], word]
    return lines
