"""Writes docs/rules/*.md, a page for each rule, the indexes of the rules and of docs/errors, and the table in
docs/amp.md: from the registry, from docs/what (what each rule looks at, and what it
does not see), and from the programs in tests/rules.

    python docs/rules.py

A test compares what is written with the registry, so that they cannot drift.
"""

import contextlib
import os
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterable
from pathlib import Path

import torch

import dtypeguard
from dtypeguard._core.base.codes import MISTAKES, Mistake
from dtypeguard._core.base.pages import FAMILIES, Entry
from dtypeguard._core.base.quiet import quiet
from dtypeguard._engine.watch.rule import RULES, Rule
from dtypeguard._show.report.causes import causes_of
from dtypeguard._show.report.text import Style, paragraphs
from dtypeguard._tools.fix.edits import said
from dtypeguard.amp._arguments import WATCHED

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests"))
from programs import Program, programs  # noqa: E402

WHAT = {
    rule: texts for file in (HERE / "what").glob("*.toml") for rule, texts in tomllib.loads(file.read_text()).items()
}
MARKS = ("<!-- rules -->\n", "<!-- end of rules -->\n")
WIDTH = 88
PAGE = """\
# {entry.id} {entry.name}

Severity: {entry.kind}{others}

{entry.summary}

## What it does

{what}

## What it does not see

{misses}

## Why is this bad?

{why}

## Example

```python
{program}```

{command} reports, for line {bad.line}:

```text
{prints}
```

## Use instead

{instead}

```python
{good.source}```

## Edits

{edits}

## When to ignore it

Where it is intended, switch it off with {ways}.

## See also

{also}
"""


def entry_of(one: Rule | Mistake) -> Entry:
    return Entry(one.id, one.name, one.severity.value if isinstance(one, Rule) else one.kind, one.summary)


def page(rule: Rule) -> str:
    """The page of a rule, with its first programs."""
    bad, good = programs("bad", rule.id)[0].plain, programs("good", rule.id)[0].plain
    calls = ["dtypeguard.audit(", *["dtypeguard.amp.watch(..., "] * (rule.id[:3] in WATCHED)]
    ways = ", ".join(
        [f"`# dtypeguard: ignore[{rule.id}]` on the line", *(f'`{c}ignore=["{rule.id}"])`' for c in calls)]
    )
    others = sorted({one.severity for one in programs("bad", rule.id)} - {"", rule.severity.value})
    return PAGE.format(
        entry=entry_of(rule),
        others=f", in some cases {' or '.join(others)}" if others else "",
        what=f"{WHAT[rule.id]['looks']}\n\n{found_by(rule)}",
        misses=WHAT[rule.id]["misses"],
        why=rule.why,
        program=marked(bad),
        bad=bad,
        command=command(rule),
        prints=printed(rule, bad) or textwrap.fill(f"{rule.id} {rule.name}: {bad.message}", 110),
        instead=f"{bad.fix[:1].upper()}{bad.fix[1:]}.",
        good=good,
        edits=edits(rule),
        ways=f'{ways}, or `ignore = ["{rule.id}"]` below `[tool.dtypeguard]` in pyproject.toml',
        also="\n".join(f"- {link}" for link in (*(f"<{source}>" for source in rule.sources), "[All rules](index.md)")),
    )


def found_by(rule: Rule) -> str:
    """Which parts of dtypeguard look for a rule."""
    values = rule.id.startswith("DG9")
    audit = "`dtypeguard.audit(values=True)`" if values else "`dtypeguard.audit`"
    watch = "; `dtypeguard.amp.watch` looks for it in each training step" if rule.id[:3] in WATCHED else ""
    return f"Found by {audit} and {command(rule)}{watch}."


def command(rule: Rule) -> str:
    return f"`python -m dtypeguard audit{' --values' * rule.id.startswith('DG9')}`"


def edits(rule: Rule) -> str:
    """What `--fix` may write for a rule."""
    kinds = {
        "Safe, `--fix` writes it, unless the finding comes of one that has no safe edit": rule.safe,
        "Changes numbers or memory on purpose, `--fix --unsafe-fixes` writes it": rule.unsafe,
    }
    lines = list[str]()
    for what, names in kinds.items():
        one = len(names) == 1
        lines += [f"- {what}: {said(names[0])}." if one else f"- {what}. It"] if names else []
        lines += [] if one else [f"  - {said(name)}{'.' if name == names[-1] else ', or'}" for name in names]
    if not lines:
        return "None is made for it: what is right depends on the program."
    text = "`python -m dtypeguard audit --diff` shows an edit if the program, run with it, has the finding no more."
    return "\n".join([text, "", *lines])


def marked(program: Program) -> str:
    lines = program.source.splitlines()
    lines[program.line - 1] += "  # <--"
    return "\n".join(lines) + "\n"


def printed(rule: Rule, program: Program) -> str:
    """What an audit prints of a program; nothing where that takes more than one process."""
    dtype, state, folder = torch.get_default_dtype(), torch.get_rng_state(), os.getcwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        file = Path(name, "program.py").resolve()
        file.write_text(program.source)
        torch.manual_seed(0)
        running = dtypeguard.audit(select=rule.id, values=rule.id.startswith("DG9"))
        silent = contextlib.redirect_stdout(None), quiet()
        try:
            with contextlib.suppress(Exception), silent[0], silent[1], running:
                exec(compile(file.read_text(), file, "exec"), {"__name__": "__main__", "__file__": str(file)})
            found = [finding for finding in running.report.findings if finding.line == program.line]
            return "\n".join(paragraphs(causes_of(found), Style(width=WIDTH)))
        finally:
            os.chdir(folder)
            torch.set_default_dtype(dtype)
            torch.set_rng_state(state)


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
    return "\n".join(parts)


def errors() -> str:
    """All mistakes that contracts report."""
    text = "The errors and warnings of `enforce`, `check`, `guard` and others have the id as their attribute `code`.\n"
    return "\n".join(["# Errors of contracts\n", text, table(MISTAKES.values(), head="code | name | raised as")])


def pages() -> dict[Path, str]:
    """Every file that is made from the registry, with its text."""
    before, rest = (HERE / "amp.md").read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    watched = table((rule for rule in RULES.values() if rule.id[:3] in WATCHED), "rules/")
    made = {HERE / "rules" / f"{rule.id}.md": page(rule) for rule in RULES.values()}
    indexes = {HERE / "rules" / "index.md": index(), HERE / "errors" / "index.md": errors()}
    return {**made, **indexes, HERE / "amp.md": before + MARKS[0] + watched + MARKS[1] + after}


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
