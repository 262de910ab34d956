"""The pages of rules and of mistakes that contracts report, as the documentation has them."""

from pathlib import Path
from typing import NamedTuple

from .._base.codes import MISTAKES, Mistake
from .._watch.rule import Rule

FAMILIES = {
    "DG0": "contracts", "DG1": "conversions", "DG2": "autocast", "DG3": "autocast and GradScaler",
    "DG4": "optimizers and averages", "DG5": "modules", "DG6": "state", "DG7": "collectives", "DG8": "export",
    "DG9": "values",
}  # fmt: skip
_PACKAGE = Path(__file__).parents[1]


class Entry(NamedTuple):
    """What lists have of a rule or a mistake; `kind` is a severity, or the name of an exception or a warning."""

    id: str
    name: str
    kind: str
    summary: str


def entry_of(one: Rule | Mistake) -> Entry:
    kind = one.severity.value if isinstance(one, Rule) else one.kind
    return Entry(one.id, one.name, kind, one.summary)


def page(code: str) -> str:
    """The page of a mistake or a rule, in Markdown."""
    shipped = _PACKAGE / "_pages"
    pages = shipped if shipped.is_dir() else _PACKAGE.parents[1] / "docs"  # an editable install has no copy
    return (pages / ("errors" if code in MISTAKES else "rules") / f"{code}.md").read_text(encoding="utf-8")
