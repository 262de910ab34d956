"""Writes docs/rules/*.md and docs/errors/*.md, a page for each rule and each mistake that contracts report, with an
index in both folders, and the table in docs/amp.md, from the registry.

    python docs/rules.py

A test compares the pages with the registry, so they cannot drift.
"""

from collections.abc import Iterable
from pathlib import Path

from dtypeguard._audit.programs import printed
from dtypeguard._base.codes import MISTAKES, Mistake
from dtypeguard._report.pages import FAMILIES, WATCHED, entry_of, page
from dtypeguard._watch.rule import RULES, Rule

HERE = Path(__file__).parent
TREE = "```{toctree}\n:hidden:\n:glob:\n\nDG*\n```\n"
MARKS = ("<!-- rules -->\n", "<!-- end of rules -->\n")


def table(rules: Iterable[Rule | Mistake], folder: str = "", head: str = "rule | name | severity") -> str:
    """Rules or mistakes, with links to their pages."""
    rows = [f"| [{r.id}]({folder}{r.id}.md) | {r.name} | {r.kind} | {r.summary} |" for r in map(entry_of, rules)]
    return "\n".join([f"| {head} | what it finds |", "|---|---|---|---|", *rows, ""])


def index() -> str:
    """All rules, by family."""
    parts = [
        "# All rules\n",
        "The severity is the usual one. A finding that proves harmless is an info, one that does harm is an error.\n",
    ]
    for family, title in FAMILIES.items():
        rules = [rule for rule in RULES.values() if rule.id.startswith(family)]
        if rules:
            parts += [f"## {family}: {title}\n", table(rules)]
    return "\n".join([*parts, TREE])


def errors() -> str:
    """All mistakes that contracts report."""
    text = "The errors and warnings of `enforce`, `check`, `guard` and others have the id as their attribute `code`.\n"
    return "\n".join(["# Errors of contracts\n", text, table(MISTAKES.values(), head="code | name | raised as"), TREE])


def pages() -> dict[Path, str]:
    """Every file that is made from the registry, with its text."""
    before, rest = (HERE / "amp.md").read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    folders = {code: HERE / ("errors" if code in MISTAKES else "rules") for code in (*MISTAKES, *RULES)}
    made = {folder / f"{code}.md": page(code, printed) for code, folder in folders.items()}
    watched = table((rule for rule in RULES.values() if rule.id[:3] in WATCHED), "rules/")
    amp = before + MARKS[0] + watched + MARKS[1] + after
    indexes = {HERE / "rules" / "index.md": index(), HERE / "errors" / "index.md": errors()}
    return {**made, **indexes, HERE / "amp.md": amp}


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
