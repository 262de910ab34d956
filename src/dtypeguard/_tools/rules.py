"""`python -m dtypeguard rules`: the table of rules and mistakes, or the pages of some; without torch."""

import argparse
import importlib.util
import sys
from collections.abc import Iterable

from .._core.base.pages import FAMILIES, Entry, entries, meant, page
from .._core.base.usage import Usage


def run(options: argparse.Namespace) -> int:
    """Print them.

    Raises:
        Usage: there is no such rule.
    """
    if not entries():
        raise Usage("the pages of the rules are not there: this copy of dtypeguard is not whole, install it anew")
    single: list[Entry] = []
    rows = [] if options.rules else entries()
    for name in options.rules:
        found = _named(name)
        (rows if len(found) > 1 else single).extend(found)
    if rows:
        _print_table(rows)
    for number, rule in enumerate(single):
        print("\n" * bool(number or rows), end="")
        _print_page(rule)
    return 0


def _named(name: str) -> list[Entry]:
    every = entries()
    for spelling in (name.upper(), name.lower()):
        found = [one for one in every if spelling in (one.id, one.id[:3], one.name)]
        if found:
            return found
    near = meant(name, every)
    families = ", ".join(FAMILIES)
    says = f"is no rule{near and f' (did you mean {near!r}?)'}: use ids or names, such as DG101, or {families}"
    raise Usage(f"{name!r} {says}")


def _print_table(rows: Iterable[Entry]) -> None:
    cells = [(one.id, one.kind, one.name, one.summary) for one in rows]
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table("rule", "severity or class", "name", "summary")
        for row in cells:
            table.add_row(*map(Text, row))
        Console(highlight=False).print(table)
        return
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    for row in cells:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]))


def _print_page(rule: Entry) -> None:
    text = page(rule.id)
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text))
    else:
        print(text, end="")
