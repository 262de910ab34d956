"""Numbers as a reader wants them."""

import re
import sys
import textwrap
from collections.abc import Iterable

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
    """A letter for each share (0 to 1) of what could be, the higher the more; none for 0 and for None.

    They are blocks, where standard output can show these.
    """
    levels = _LEVELS[0]
    try:
        levels.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        levels = _LEVELS[1]
    top = len(levels) - 1
    return "".join(levels[min(top, int(top * share + 0.5))] if share else " " for share in shares)


def modules_shown(paths: list[str], most: int | None = 6) -> list[str]:
    """Paths that differ only in numbers in one line: `blocks.0 ... blocks.11 (12 modules)`; None shows all lines."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(re.sub(r"\d+", "*", path), []).append(path)
    lines = [
        group[0] if len(group) == 1 else f"{group[0]} ... {group[-1]} ({len(group)} modules)"
        for group in groups.values()
    ]
    if most is None or len(lines) <= most + 1:
        return lines
    return [*lines[:most], f"... {number(len(lines) - most, 'more line')}"]
