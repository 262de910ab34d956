"""The pages of rules and of mistakes that contracts report, as the documentation has them; without torch."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

FAMILIES = {
    "DG0": "contracts", "DG1": "conversions", "DG2": "autocast", "DG3": "autocast and GradScaler",
    "DG4": "optimizers and averages", "DG5": "modules", "DG6": "state", "DG7": "collectives", "DG8": "export",
    "DG9": "values",
}  # fmt: skip
_WORD = re.compile("[a-z0-9]+")
_PACKAGE = Path(__file__).parents[2]


class Entry(NamedTuple):
    """What lists have of a rule or a mistake; `kind` is a severity, or the name of an exception or a warning."""

    id: str
    name: str
    kind: str
    summary: str


@cache
def pages() -> dict[str, Path]:
    """The files of all pages by the ids of what they are about, in the order of these."""
    shipped = _PACKAGE / "_pages"
    folder = shipped if shipped.is_dir() else _PACKAGE.parents[1] / "docs"  # an editable install has no copy
    return {path.stem: path for part in ("errors", "rules") for path in sorted((folder / part).glob("DG*.md"))}


def page(code: str) -> str:
    """The page of a mistake or a rule, in Markdown."""
    return pages()[code].read_text(encoding="utf-8")


def entries() -> list[Entry]:
    """What each page says at its top."""
    found = []
    for code in pages():
        title, kind, summary, _ = page(code).split("\n\n", 3)
        kind = kind.partition(": ")[2].partition(", in some cases")[0]  # the usual severity
        found.append(Entry(code, title.split(" ", 2)[2], kind, summary))
    return found


def by_words(text: str, among: Iterable[Entry]) -> list[str]:
    """The name of the entry whose name and summary have most of the words of a text, if they have two or more."""
    words = _words(text)
    shared = {one.name: len(words & _words(f"{one.name} {one.summary}")) for one in among}
    best = max(shared, key=lambda name: shared[name], default="")
    return [best] if shared.get(best, 0) >= 2 else []


_NUMBERED = re.compile(r"dg\d{1,3}")


def meant(name: str, among: Iterable[Entry]) -> str:
    """The id or name that may be meant: it is spelt nearly so or has the same words, else it is a little alike."""
    import difflib

    among = list(among)
    name = name.lower().replace("_", "-")
    if _NUMBERED.fullmatch(name):
        return ""  # spelt as an id is, of another version or of nothing
    spelt = {word.lower(): word for one in among for word in (one.id, one.name)}

    def likeness(one: str) -> tuple[float, int, bool]:  # of two ids the one with more digits in their places
        same = sum(map(str.__eq__, name, one))
        return difflib.SequenceMatcher(None, name, one).ratio(), same, one.startswith(name[:3])

    close = difflib.get_close_matches(name, spelt, len(spelt), 0.6 if name.startswith("dg") else 0.7)
    near = [spelt[one] for one in sorted(close, key=likeness)[-1:]]
    alike = near and likeness(near[0].lower())[0] > 0.85
    begun = [one.name for one in among if name and one.name.startswith(f"{name}-")]
    return next(iter(near if alike else [*begun, *by_words(name, among), *near]), "")


def _words(text: str) -> set[str]:
    """The words of a text, where one and several are the same."""
    return {word.removesuffix("s") for word in _WORD.findall(text.lower())}
