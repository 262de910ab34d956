"""The page of a rule, as the documentation has it and the command line prints it."""

import textwrap
from typing import Any

from .._watch.rule import Program, Rule

WATCHED = ("DG3", "DG4")  # families that `amp.watch` looks for too


def page(module: Any) -> str:
    """The page of one rule."""
    rule, bad, good = module.RULE, module.BAD[0], module.GOOD[0]
    prints = textwrap.fill(f"{rule.id} {rule.name}: {bad.prints}", 110)
    sources = "\n".join(f"- <{source}>" for source in rule.sources)
    return f"""# {rule.id} {rule.name}

Severity: {rule.severity.value}

{rule.summary}

{rule.why}

## A program with the fault

```python
{_marked(bad)}```

dtypeguard reports, for line {bad.at}:

```text
{prints}
```

**What to write**: {bad.fix}

```python
{good.source}```

## To leave it out

{leave_out(rule)}.

## Sources

{sources}
"""


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
