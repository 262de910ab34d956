"""Findings as text, for terminals, files and logs: the lines of the program, with what is wrong on them."""

import dataclasses
import itertools
import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

import torch

from ..._core.base.dtypes import name_of
from ..._core.base.frames import installed
from ..._engine.watch.findings import Cast
from ..._engine.watch.rule import Severity
from ..._engine.watch.spots import Spot
from ..text import human, number
from .causes import Cause, Change, tone, where

_WIDEST, _NARROWEST = 110, 40
_LINES = 4  # of the program, for one cause
_LABEL = 36  # columns of a label
_BRIEF = 10  # causes that are mere information
_CHANGES = 10
_CASTS = 20
_NOWHERE = "an unknown line"
_CODE, _GLUE = re.compile(r"`[^`]*`"), "\0"
_CODES = {"error": "1;31", "warning": "1;33", "info": "1;36", "frame": "1;34", "help": "1;32", "strong": "1"}


@dataclasses.dataclass(frozen=True)
class Style:
    """How text is written."""

    width: int = 100  # columns; code and paths are never split
    colour: bool = False  # whether escape sequences for colours may be written

    @classmethod
    def of(cls, stream: TextIO | None = None) -> "Style":
        """What a stream takes: `COLUMNS` or the terminal's width; colours on a terminal, but for `NO_COLOR`."""
        width = shutil.get_terminal_size((100, 40)).columns
        colour = False  # without a stream nobody knows where a text goes
        if stream is not None and not os.environ.get("NO_COLOR"):
            colour = bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")
        return cls(max(_NARROWEST, min(width, _WIDEST)), colour)

    def paint(self, text: str, kind: str) -> str:
        """A text in the colour of its kind."""
        return f"\x1b[{_CODES[kind]}m{text}\x1b[0m" if self.colour and text else text

    def fold(self, text: str, first: str = "", rest: str = "", kind: str | None = None) -> Iterator[str]:
        """A text in lines, after a first prefix and others; paths and code are not split, so they can be copied."""
        room = max(self.width - max(len(first), len(rest)), 20)
        glued = _CODE.sub(lambda code: code[0].replace(" ", _GLUE), text)
        lines = textwrap.wrap(glued, room, break_long_words=False, break_on_hyphens=False) or [""]
        for count, line in enumerate(lines):
            words = line.replace(_GLUE, " ")
            yield (rest if count else first) + (self.paint(words, kind) if kind else words)


def verdict_lines(words: str, changes: Sequence[Change], style: Style) -> Iterator[str]:
    """The verdict, and the table of lines to change where there are several."""
    yield style.paint(words, "error" if tone(words) == "error" else "help")
    if len(changes) < 2:
        return
    shown = changes[:_CHANGES]
    place, removed = max(len(change.place) for change in shown), max(len(change.removes) for change in shown)
    for change in shown:
        facts = f"  {change.place:<{place}}  {change.removes:<{removed}}  "
        if len(facts) + 40 <= style.width:
            yield from style.fold(change.fix, facts, " " * len(facts))
        else:
            yield facts.rstrip()
            yield from style.fold(change.fix, "      ", "      ")
    if len(changes) > _CHANGES:
        yield f"  ... {len(changes) - _CHANGES} more"


def cause_lines(cause: Cause, style: Style) -> Iterator[str]:
    """A cause as compilers print it: what is wrong, where, the code, and what to write."""
    first, spots = cause.first, _shown_first(cause)
    tag = f"{cause.severity}[{cause.rule}]"
    head, *rest = style.fold(cause.title, f"{tag}: ", "    ", "strong")
    yield style.paint(tag, cause.severity) + head.removeprefix(tag)
    yield from rest
    gutter = max([len(str(spot.line)) for spot in spots[:_LINES]], default=1)
    arrow = style.paint(f"{' ' * gutter}-->", "frame")
    yield f"{arrow} {_facts(cause, spots[0].place if spots else first.site or _NOWHERE)}"
    yield from _code(cause, spots, gutter, style)
    yield from _help(cause, style)


def _facts(cause: Cause, place: str) -> str:
    """Where a cause is and how often it was seen."""
    where = f"in {cause.where}" if cause.where else ""
    return ", ".join(filter(None, [place, cause.often, where, cause.seen]))


def _shown_first(cause: Cause) -> Sequence[Spot]:
    """The lines of a cause; the one to change is among those that are shown."""
    spots, edit = list(cause.spots), cause.edit
    late = next((spot for spot in spots[_LINES:] if edit and (spot.file, spot.line) == (edit.file, edit.line)), None)
    if late is not None:
        spots.remove(late)
        spots.insert(_LINES - 1, late)
    return spots


def _help(cause: Cause, style: Style, indent: str = "") -> Iterator[str]:
    head, *rest = style.fold(cause.advice, f"{indent}help: ", f"{indent}      ")
    yield indent + style.paint("help:", "help") + head.removeprefix(f"{indent}help:")
    yield from rest


def _code(cause: Cause, spots: Sequence[Spot], gutter: int, style: Style) -> Iterator[str]:
    """The lines of the program, by file and number, those of the first fault's file first."""
    shown = [spot for spot in spots[:_LINES] if spot.source]
    faults = {id(finding.spots[0]) for finding in cause.findings if finding.spots}
    files = list(dict.fromkeys(spot.file for spot in shown))
    for count, file in enumerate(files):
        several = sorted((spot for spot in shown if spot.file == file), key=lambda spot: spot.line)
        if count:
            yield f"{style.paint(' ' * gutter + ':::', 'frame')} {several[0].place}"
        for before, spot in itertools.zip_longest([None, *several[:-1]], several):
            if before is not None and spot.line > before.line + 1:
                yield style.paint("...", "frame")
            yield from _spot(spot, gutter, cause.severity if id(spot) in faults else None, style)
    if len(spots) > _LINES:
        yield f"{style.paint(' ' * gutter + ' =', 'frame')} and {number(len(spots) - _LINES, 'more line')}"


def _spot(spot: Spot, gutter: int, severity: str | None, style: Style) -> Iterator[str]:
    bar = style.paint(f"{' ' * gutter} |", "frame")
    source, begin, end = _window(spot, style.width - gutter - 3)
    yield f"{style.paint(f'{spot.line:>{gutter}} |', 'frame')} {source}"
    mark = style.paint(("^" if severity else "-") * (end - begin), severity or "frame")
    room = style.width - gutter - 3 - end - 1
    if len(spot.label) <= room:
        yield f"{bar} {' ' * begin}{mark} {style.paint(spot.label, severity or 'frame')}".rstrip()
        return
    yield f"{bar} {' ' * begin}{mark}"
    columns = style.width - gutter - 3
    indent = begin if columns - begin >= _LABEL else max(columns - 50, 2)  # below the code, or clearly apart
    prefix = " " * (gutter + 3 + indent)
    for line in style.fold(spot.label, prefix, prefix):
        yield f"{bar} {' ' * indent}{style.paint(line.removeprefix(prefix), severity or 'frame')}"


def _window(spot: Spot, room: int) -> tuple[str, int, int]:
    """The part of a line that has room, without the indentation that it does not need, and the columns in it."""
    source = spot.source.expandtabs(1)
    indent = max(len(source) - len(source.lstrip()) - 4, 0) if len(source) > room else 0
    source, begin, end = source[indent:], max(spot.begin - indent, 0), spot.end - indent
    if len(source) <= room:
        return source, begin, end
    start = 0 if end <= room - 3 else max(min(begin - 3, end - room + 3), 0)
    text = ("..." if start else "") + source[start + (3 if start else 0) :]
    begin, end = begin - start, end - start
    if len(text) > room:
        text = text[: room - 3] + "..."
        end = min(end, room)
    return text, begin, max(end, begin + 1)


def brief_lines(causes: Sequence[Cause], style: Style) -> Iterator[str]:
    """Mere information, in a paragraph each."""
    for cause in causes[:_BRIEF]:
        tag = style.paint(f"{cause.severity}[{cause.rule}]", cause.severity)
        led = next((f", {spot.label}" for spot in cause.first.spots[:1] if spot.label.startswith("leads to ")), "")
        yield f"{tag} {_facts(cause, (cause.first.site or _NOWHERE).replace(', in ', ' in '))}{led}"
        yield from style.fold(cause.first.message, "    ", "    ")
        yield from _help(cause, style, "    ")
    if len(causes) > _BRIEF:
        yield f"... {len(causes) - _BRIEF} more: `report.findings` and --output-format json have all"


def paragraphs(causes: Iterable[Cause], style: Style) -> Iterator[str]:
    """All causes, those that are mere information last, that about installed packages in one line."""
    every = list(causes)
    bad = [cause for cause in every if cause.severity != Severity.INFO.value]
    for count, cause in enumerate(bad):
        yield from [""] * bool(count)
        yield from cause_lines(cause, style)
    mere = every[len(bad) :]
    apart = [cause for cause in mere if cause.spots and not cause.spots[0].mine]
    mere = [cause for cause in mere if cause not in apart]
    if mere or apart:
        yield from [""] * bool(bad)
    yield from brief_lines(mere, style)
    if apart:
        names = sorted({(installed(cause.spots[0].file) or "").partition("/")[0] for cause in apart})
        yield from style.fold(
            f"{number(len(apart), 'info')} in installed packages: {', '.join(names)}; --output-format json has all"
        )


def cast_lines(casts: Sequence[Cast], style: Style) -> Iterator[str]:
    """The table of casts that are worth a look, and why; those of one line in several modules are one."""
    groups: dict[tuple[str, ...], list[Cast]] = {}
    for cast in casts:
        if worth := _worth(cast):
            groups.setdefault((cast.kind, _arrow(cast), cast.site, worth), []).append(cast)
    if not groups:
        return
    rows = sorted(groups.items(), key=lambda row: -sum(cast.bytes for cast in row[1]))
    width = max(len(_arrow(group[0])) for _, group in rows[:_CASTS])
    lines = len({site for (_, _, site, _), _ in rows})
    yield f"casts that are worth a look ({lines} of {cast_count(casts).removeprefix('casts at ')})"
    yield f"  {'bytes':>9}   times  {'cast':<{width}}  line, and why"
    for (*_, worth), group in rows[:_CASTS]:
        size, count = human(sum(cast.bytes for cast in group)), sum(cast.count for cast in group)
        facts = f"  {size:>9} {count:>6}x  {_arrow(group[0]):<{width}}"
        modules = where([cast.module_path for cast in group if cast.module_path])
        place = group[0].site + (f", in {modules}" if modules else "")
        if len(facts) + 2 + len(place) <= style.width:
            yield f"{facts}  {place}"
        else:
            yield from [facts.rstrip(), " " * 21 + place]
        yield f"{' ' * 21}{worth}"
    if len(rows) > _CASTS:
        yield f"  ... {len(rows) - _CASTS} more"


def _worth(cast: Cast) -> str:
    """Why to look at a cast; nothing where there is no reason."""
    if cast.from_dtype is cast.to_dtype:
        return f"copies from {cast.from_device} to {cast.to_device}" if cast.from_device != cast.to_device else ""
    if cast.kind == "promotion":
        return "nobody wrote it: operands of two dtypes met"
    where = "in the backward of this line: " if cast.kind == "backward" else ""
    return f"{where}float64 takes twice the memory of float32" if cast.to_dtype is torch.float64 else ""


def at_least(severity: str) -> str:
    """A severity, and those that are worse."""
    return severity if severity == Severity.ERROR.value else f"{severity} or worse"


def failed(faults: Sequence[BaseException]) -> Iterator[str]:
    """That the audit itself failed, if it did: a report without findings would read as if nothing were wrong."""
    if faults:
        first = f"{type(faults[0]).__name__}: {faults[0]}".partition("\n")[0]
        times = f"{number(len(faults), 'time')}, first with {first}" if len(faults) > 1 else f"with {first}"
        yield f"the audit itself failed {times}: a bug of dtypeguard; what it looked at there is not judged"


def cast_count(casts: Iterable[Cast]) -> str:
    """The number of lines that cast."""
    lines = len({cast.site for cast in casts})
    return f"casts at {number(lines, 'line')}" if lines else "no casts"


def _arrow(cast: Cast) -> str:
    if cast.from_dtype is cast.to_dtype:
        return f"{name_of(cast.from_dtype)} {cast.from_device} -> {cast.to_device}"
    return f"{name_of(cast.from_dtype)} -> {name_of(cast.to_dtype)}"
