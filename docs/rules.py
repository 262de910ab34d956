"""Writes docs/rules/*.md, one page for each rule, and the table in docs/amp.md, from the registry.

    python docs/rules.py

A test compares the pages with the registry, so they cannot drift.
"""

import re
from pathlib import Path

from dtypeguard._rules import RULES, Rule

HERE = Path(__file__).parent
MARKS = ("<!-- rules -->\n", "<!-- end of rules -->\n")


def page(rule: Rule) -> str:
    """The page of one rule."""
    sources = "\n".join(f"- <{source.strip()}>" for source in rule.source.split(";"))
    return f"""# {rule.id} {rule.name}

Severity: {rule.severity.value}

> {_blanks(rule.says)}

{rule.why}

**What to write**: {_blanks(rule.fix)}

**To leave it out**: `dtypeguard.amp.watch(..., ignore=["{rule.id}"])`

Sources:

{sources}
"""


def table() -> str:
    """All rules, with links to their pages."""
    rows = [f"| [{r.id}](rules/{r.id}.md) | {r.name} | {r.severity.value} | {_blanks(r.fix)} |" for r in RULES.values()]
    return "\n".join(["| rule | name | severity | what to write |", "|---|---|---|---|", *rows, ""])


def _blanks(template: str) -> str:
    """A message's format as prose, with a mark where a finding fills something in."""
    return re.sub(r"\{(\w+)[^}]*\}", "…", template)


def pages() -> dict[Path, str]:
    """Every file that is made from the registry, with its text."""
    before, rest = (HERE / "amp.md").read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    made = {HERE / "rules" / f"{rule.id}.md": page(rule) for rule in RULES.values()}
    return {**made, HERE / "amp.md": before + MARKS[0] + table() + MARKS[1] + after}


if __name__ == "__main__":
    (HERE / "rules").mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
