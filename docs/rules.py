"""Writes docs/rules/*.md, one page for each rule and an index, and the table in docs/amp.md, from the registry.

    python docs/rules.py

A test compares the pages with the registry, so they cannot drift.
"""

from collections.abc import Iterable
from pathlib import Path

from dtypeguard._report.pages import WATCHED, page
from dtypeguard._watch.rule import RULES, Rule, rule_modules

HERE = Path(__file__).parent
FAMILIES = {
    "DG1": "conversions", "DG2": "autocast", "DG3": "autocast and GradScaler", "DG4": "optimizers and averages",
    "DG5": "modules", "DG6": "state", "DG7": "collectives", "DG8": "export", "DG9": "values",
}  # fmt: skip
MARKS = ("<!-- rules -->\n", "<!-- end of rules -->\n")


def table(rules: Iterable[Rule], folder: str = "") -> str:
    """Rules, with links to their pages."""
    rows = [f"| [{r.id}]({folder}{r.id}.md) | {r.name} | {r.severity.value} | {r.summary} |" for r in rules]
    return "\n".join(["| rule | name | severity | what it finds |", "|---|---|---|---|", *rows, ""])


def index() -> str:
    """All rules, by family."""
    parts = [
        "# All rules\n",
        "The severity is the usual one. A finding that proves harmless is an info, one that does harm is an error.\n",
    ]
    for family, title in FAMILIES.items():
        parts.append(f"## {family}: {title}\n")
        parts.append(table(rule for rule in RULES.values() if rule.id.startswith(family)))
    parts.append("```{toctree}\n:hidden:\n:glob:\n\nDG*\n```\n")
    return "\n".join(parts)


def pages() -> dict[Path, str]:
    """Every file that is made from the registry, with its text."""
    before, rest = (HERE / "amp.md").read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    made = {HERE / "rules" / f"{module.RULE.id}.md": page(module) for module in rule_modules()}
    watched = table((rule for rule in RULES.values() if rule.id[:3] in WATCHED), "rules/")
    amp = before + MARKS[0] + watched + MARKS[1] + after
    return {**made, HERE / "rules" / "index.md": index(), HERE / "amp.md": amp}


if __name__ == "__main__":
    (HERE / "rules").mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
