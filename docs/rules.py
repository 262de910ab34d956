"""Writes docs/rules/*.md, one page for each rule and an index, and the table in docs/amp.md, from the registry.

    python docs/rules.py

A test compares the pages with the registry, so they cannot drift.
"""

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dtypeguard._watch.rule import RULES, Program, Rule, rule_modules

HERE = Path(__file__).parent
WATCHED = ("DG3", "DG4")  # by `amp.watch` too
FAMILIES = {
    "DG1": "conversions", "DG2": "autocast", "DG3": "autocast and GradScaler", "DG4": "optimizers and averages",
    "DG5": "modules", "DG6": "state", "DG7": "collectives", "DG8": "export",
}  # fmt: skip
MARKS = ("<!-- rules -->\n", "<!-- end of rules -->\n")


def page(module: Any) -> str:
    """The page of one rule."""
    rule: Rule = module.RULE
    sources = "\n".join(f"- <{source}>" for source in rule.sources)
    return f"""# {rule.id} {rule.name}

Severity: {rule.severity.value}

{rule.summary}

{rule.why}

## A program with the fault

{example(module)}
## What to write

{_blanks(rule.fix)[0].upper()}{_blanks(rule.fix)[1:]}.
{alike(module)}
## To leave it out

{leave_out(rule)}.

## Sources

{sources}
"""


def example(module: Any) -> str:
    """The first bad program, and what is printed for it."""
    rule, program = module.RULE, module.BAD[0]
    prints = f"{rule.id} {rule.name}: {program.prints}"
    code = f"```python\n{_marked(program)}```\n"
    return f"{code}\ndtypeguard reports, for line {program.at}:\n\n```text\n{textwrap.fill(prints, 110)}\n```\n"


def alike(module: Any) -> str:
    """The first good program."""
    return f"\nRight, and not reported:\n\n```python\n{module.GOOD[0].source}```\n"


def _marked(program: Program) -> str:
    lines = program.source.splitlines()
    lines[program.at - 1] += "  # <--"
    return "\n".join(lines) + "\n"


def leave_out(rule: Rule) -> str:
    """How to switch it off."""
    ways = f'`# dtypeguard: ignore[{rule.id}]` on the line, `dtypeguard.audit(ignore=["{rule.id}"])`'
    if rule.id[:3] in WATCHED:
        ways += f', `dtypeguard.amp.watch(..., ignore=["{rule.id}"])`'
    return f'{ways}, or `ignore = ["{rule.id}"]` below `[tool.dtypeguard]` in pyproject.toml'


def table(rules: Iterable[Rule], folder: str = "") -> str:
    """Rules, with links to their pages."""
    rows = [f"| [{r.id}]({folder}{r.id}.md) | {r.name} | {r.severity.value} | {r.summary} |" for r in rules]
    return "\n".join(["| rule | name | severity | what it finds |", "|---|---|---|---|", *rows, ""])


def index() -> str:
    """All rules, by family."""
    parts = [
        "# All rules\n",
        "The severity is that of most findings. A finding that proves harmless is an info, a harmful one an error.\n",
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
    made = {HERE / "rules" / f"{module.RULE.id}.md": page(module) for module in rule_modules()}
    watched = table((rule for rule in RULES.values() if rule.id[:3] in WATCHED), "rules/")
    amp = before + MARKS[0] + watched + MARKS[1] + after
    return {**made, HERE / "rules" / "index.md": index(), HERE / "amp.md": amp}


if __name__ == "__main__":
    (HERE / "rules").mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
