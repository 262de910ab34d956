"""The pages of rules and of mistakes that contracts report, for the documentation and the command line."""

import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

from .._base.codes import Mistake
from .._base.errors import with_docs
from .._watch.rule import Program, Rule, rule_modules
from .dg0 import EXPLANATIONS, Explanation

WATCHED = ("DG3", "DG4")  # families that `amp.watch` looks for too
FAMILIES = {
    "DG0": "contracts", "DG1": "conversions", "DG2": "autocast", "DG3": "autocast and GradScaler",
    "DG4": "optimizers and averages", "DG5": "modules", "DG6": "state", "DG7": "collectives", "DG8": "export",
    "DG9": "values",
}  # fmt: skip
_PAGE = """\
# {entry.id} {entry.name}

{kind}: {entry.kind}

{entry.summary}

## What it does

{what}

## Why is this bad?

{why}

## Example

```python
{program}```

{told}

```text
{prints}
```

## Use instead

{instead}

```python
{good}```

## When to ignore it

{ignore}

## See also

{also}
"""


class Entry(NamedTuple):
    """What lists have of a rule or a mistake; `kind` is a severity, or the name of an exception or a warning."""

    id: str
    name: str
    kind: str
    summary: str


def entry_of(one: Rule | Mistake) -> Entry:
    kind = one.severity.value if isinstance(one, Rule) else one.kind
    return Entry(one.id, one.name, kind, one.summary)


def page(code: str, audited: Callable[[Any], str]) -> str:
    """The page of a mistake or a rule; `audited` tells what an audit of a rule's program prints."""
    if code in EXPLANATIONS:
        return _mistake_page(EXPLANATIONS[code])
    return _rule_page(next(module for module in rule_modules() if module.RULE.id == code), audited)


def printed(explained: Explanation) -> str:
    """What dtypeguard prints of a program with a mistake."""
    text = explained.bad.prints.strip()
    return text if explained.mistake.kind.endswith("Warning") else with_docs(text, explained.mistake.id)


def _mistake_page(explained: Explanation) -> str:
    warns = explained.mistake.kind.endswith("Warning")
    return _PAGE.format(
        entry=entry_of(explained.mistake),
        kind="Warning" if warns else "Error",
        what=explained.what,
        why=explained.why,
        program=_marked(explained.bad),
        told=f"dtypeguard {'warns' if warns else 'raises'}, at line {explained.bad.at}:",
        prints=printed(explained),
        instead=_sentence(explained.bad.fix),
        good=explained.good.source,
        ignore=explained.ignore,
        also=_items((*explained.also, "[All mistakes that contracts report](index.md)")),
    )


def _rule_page(module: Any, audited: Callable[[Any], str]) -> str:
    rule, bad, good = module.RULE, module.BAD[0], module.GOOD[0]
    return _PAGE.format(
        entry=entry_of(rule),
        kind="Severity",
        what=_found_by(rule),
        why=rule.why,
        program=_marked(bad),
        told=f"dtypeguard reports, for line {bad.at}:",
        prints=audited(module) or textwrap.fill(f"{rule.id} {rule.name}: {bad.prints}", 110),
        instead=_sentence(bad.fix),
        good=good.source,
        ignore=f"Where it is intended, switch it off with {leave_out(rule)}.",
        also=_items((*(f"<{source}>" for source in rule.sources), "[All rules](index.md)")),
    )


def _found_by(rule: Rule) -> str:
    """Which parts of dtypeguard look for a rule."""
    family = rule.id[:3]
    audit = "`dtypeguard.audit(values=True)`" if family == "DG9" else "`dtypeguard.audit`"
    command = "`python -m dtypeguard audit --values`" if family == "DG9" else "`python -m dtypeguard audit`"
    watch = "; `dtypeguard.amp.watch` looks for it in each training step" if family in WATCHED else ""
    return (
        f"{audit} and {command} look for it in everything that a program runs{watch}. A finding names the line, what "
        "was found there, and what to write instead."
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _items(texts: tuple[str, ...]) -> str:
    return "\n".join(f"- {text}" for text in texts)


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
