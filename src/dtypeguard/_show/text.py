"""Numbers as a reader wants them."""

import math
import re
import sys
import textwrap
from collections.abc import Iterable

_FOLDED = 3  # names
_LEVELS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588", ".:-=+*#@"  # eighths of a block, or else their darkness


def human(size: float) -> str:
    """A number of bytes: `1.5 KiB`."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 999.95 or unit == "TiB":
            break
    return f"{size:.1f} {unit}"


def limit(value: float) -> str:
    """A limit of a dtype as it is known: `65504`, `3.39e38`, `6.1e-5`."""
    text = f"{value:.5g}"
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.3g}") if "e" in text else text


def percent(value: float) -> str:
    """An error or a share as a reader wants it, in one unit: `56 %`, `0.42 %`, `0.0013 %`, `1.3e-05 %`."""
    if not math.isfinite(value):
        return str(value)
    value *= 100
    return f"{value:.0f} %" if abs(value) >= 9.95 else f"{value:.2g} %"


def number(count: int, what: str) -> str:
    """A count with its noun: `1 cast`, `2,000 casts`; `info` has no plural."""
    return f"{count:,} {what}{'' if count == 1 or what == 'info' else 's'}"


def wrapped(text: str, indent: str = "    ", columns: int = 80) -> list[str]:
    """The lines of a text, those after the first with an indentation; names and numbers are not broken."""
    return textwrap.wrap(text, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def cut(name: str, width: int) -> str:
    """The end of a name that is too long, as it says most."""
    return name if len(name) <= width else f"...{name[len(name) - width + 3 :]}"


def spark(shares: Iterable[float | None]) -> str:
    """A letter for each share (0 to 1), the higher the more; blocks, where standard output can show these."""
    levels = _LEVELS[0]
    try:
        levels.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        levels = _LEVELS[1]
    top = len(levels) - 1
    return "".join(levels[min(top, int(top * share + 0.5))] if share else " " for share in shares)


def first_few(texts: list[str], most: int = 6) -> list[str]:
    """The first of many, and how many more there are."""
    return texts if len(texts) <= most + 1 else [*texts[:most], f"... {len(texts) - most} more"]


def titled(name: str) -> str:
    """The name of a module; the model itself has none."""
    return name or "(the model itself)"


def modules_shown(names: Iterable[str], modules: Iterable[str] = ()) -> list[str]:
    """Names of modules, in one those that differ by numbers: `layers.*.mlp` are all of them, `layers.{0,2-4}.mlp` some.

    `modules` are the names of all modules.
    """
    every: dict[str, set[str]] = {}
    for name in modules:
        every.setdefault(_starred(name), set()).add(name)
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_starred(name), []).append(name)
    rows: list[str] = []
    for key, group in groups.items():
        least = 2 if key.strip("*.") else _FOLDED  # two blocks are a row; of `0, 1` nobody would know what `*` is
        rows += [key] if len(group) >= least and every.get(key) == set(group) else _braced(group)
    return rows


def _starred(name: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _braced(names: list[str]) -> list[str]:
    """Names that differ by numbers only: in one where each number of a place stands with each of the others."""
    if len(names) < _FOLDED:
        return list(map(titled, names))
    parts = zip(*(name.split(".") for name in names), strict=True)
    columns = [sorted(set(column), key=lambda part: (len(part), part)) for column in parts]
    if math.prod(map(len, columns)) == len(set(names)):
        return [".".join(c[0] if len(c) == 1 else f"{{{_ranges(list(map(int, c)))}}}" for c in columns)]
    ways = (_alike(names, at) for at, column in enumerate(columns) if len(column) > 1)
    return [row for group in min((way for way in ways if len(way) > 1), key=len) for row in _braced(group)]


def _alike(names: list[str], at: int) -> list[list[str]]:
    """Names, those together whose numbers in one place stand with the same others."""
    numbers = {name: name.split(".").pop(at) for name in names}
    beside: dict[str, set[tuple[str, ...]]] = {}
    for name, number in numbers.items():
        parts = name.split(".")
        beside.setdefault(number, set()).add((*parts[:at], *parts[at + 1 :]))
    groups: dict[frozenset[tuple[str, ...]], list[str]] = {}
    for name, number in numbers.items():
        groups.setdefault(frozenset(beside[number]), []).append(name)
    return list(groups.values())


def _ranges(numbers: list[int]) -> str:
    """`0,2-4`"""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and rows[-1][-1] == number - 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ",".join(f"{row[0]}-{row[-1]}" if len(row) > 1 else f"{row[0]}" for row in rows)
