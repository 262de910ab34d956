"""Writes docs/rules/*.md, one page for each rule and an index, and the table in docs/amp.md, from the registry.

    python docs/rules.py

A test compares the pages with the registry, so they cannot drift.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from dtypeguard._rules import RULES, Rule

HERE = Path(__file__).parent
WATCHED = ("DG3", "DG4")  # by `amp.watch` too
FAMILIES = {
    "DG1": "conversions", "DG2": "autocast", "DG3": "autocast and GradScaler", "DG4": "optimizers and averages",
    "DG5": "modules", "DG6": "state", "DG7": "collectives", "DG8": "export",
}  # fmt: skip
MARKS = ("<!-- rules -->\n", "<!-- end of rules -->\n")


def page(rule: Rule) -> str:
    """The page of one rule."""
    sources = "\n".join(f"- <{source.strip()}>" for source in rule.source.split(";"))
    return f"""# {rule.id} {rule.name}

Severity: {rule.severity.value}

> {_blanks(rule.says)}

{rule.why}

**What to write**: {_blanks(rule.fix)}

**To leave it out**: {leave_out(rule)}

Sources:

{sources}
"""


def leave_out(rule: Rule) -> str:
    """How to switch it off."""
    ways = f'`# dtypeguard: ignore[{rule.id}]` on the line, `dtypeguard.audit(ignore=["{rule.id}"])`'
    if rule.id[:3] in WATCHED:
        ways += f', `dtypeguard.amp.watch(..., ignore=["{rule.id}"])`'
    return f'{ways}, or `ignore = ["{rule.id}"]` below `[tool.dtypeguard]` in pyproject.toml'


def table(rules: Iterable[Rule], folder: str = "") -> str:
    """Rules, with links to their pages."""
    rows = [f"| [{r.id}]({folder}{r.id}.md) | {r.name} | {r.severity.value} | {_blanks(r.fix)} |" for r in rules]
    return "\n".join(["| rule | name | severity | what to write |", "|---|---|---|---|", *rows, ""])


def index() -> str:
    """All rules, by family."""
    parts = [
        "# All rules\n",
        "The severity is the usual one; a finding that turns out harmless is an info, a harmful one worse.\n",
    ]
    for family, title in FAMILIES.items():
        parts.append(f"## {family}: {title}\n")
        parts.append(table(rule for rule in RULES.values() if rule.id.startswith(family)))
    parts.append("```{toctree}\n:hidden:\n:glob:\n\nDG*\n```\n")
    return "\n".join(parts)


def _blanks(template: str) -> str:
    """A message's format as prose, with a mark where a finding fills something in."""
    return re.sub(r": …$", "", re.sub(r"\{(\w+)[^}]*\}", "…", template))


def pages() -> dict[Path, str]:
    """Every file that is made from the registry, with its text."""
    before, rest = (HERE / "amp.md").read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    made = {HERE / "rules" / f"{rule.id}.md": page(rule) for rule in RULES.values()}
    watched = table((rule for rule in RULES.values() if rule.id[:3] in WATCHED), "rules/")
    amp = before + MARKS[0] + watched + MARKS[1] + after
    return {**made, HERE / "rules" / "index.md": index(), HERE / "amp.md": amp}


if __name__ == "__main__":
    (HERE / "rules").mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
