"""Writes docs/rules/*.md and docs/errors/*.md, a page for each rule and each mistake that contracts report, with an
index in both folders, and the table in docs/amp.md, from the registry.

    python docs/rules.py

A test compares the pages with the registry, so they cannot drift.
"""

import contextlib
import linecache
import os
import re
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import dtypeguard
from dtypeguard._base.codes import MISTAKES, Mistake
from dtypeguard._report.causes import causes_of
from dtypeguard._report.pages import FAMILIES, WATCHED, entry_of
from dtypeguard._report.pages import pages as every
from dtypeguard._report.text import Style, paragraphs
from dtypeguard._watch.rule import RULES, Rule, rule_modules

HERE = Path(__file__).parent
TREE = "```{toctree}\n:hidden:\n:glob:\n\nDG*\n```\n"
WATCH = re.compile(r"^.*\bdtypeguard\.amp\.watch\(.*\n", re.MULTILINE)
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


def printed(module: Any) -> str:
    """What an audit prints of a rule's first program; nothing where that takes more than one process."""
    rule, program = module.RULE, module.BAD[0]
    source = WATCH.sub("\n", program.source)  # what `amp.watch` looks for, an audit finds by itself
    default, folder = torch.get_default_dtype(), os.getcwd()
    linecache.clearcache()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        file = Path(name, "program.py").resolve()
        file.write_text(source)
        torch.manual_seed(0)
        names = {"__name__": "__main__", "__file__": str(file)}
        report = dtypeguard.audit(rules=rule.id, values=rule.id.startswith("DG9"))
        quiet = contextlib.redirect_stdout(None), warnings.catch_warnings(action="ignore")
        try:
            with contextlib.suppress(Exception), quiet[0], quiet[1], report as report:
                exec(compile(source, file, "exec"), names)
            found = [finding for finding in report.findings if finding.line == program.at]
            return "\n".join(paragraphs(causes_of(found), Style(width=88)))
        finally:
            os.chdir(folder)
            torch.set_default_dtype(default)


def pages() -> dict[Path, str]:
    """Every file that is made from the registry, with its text."""
    before, rest = (HERE / "amp.md").read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    shown = {module.RULE.id: printed(module) for module in rule_modules()}
    made = {
        HERE / ("errors" if code in MISTAKES else "rules") / f"{code}.md": text for code, text in every(shown).items()
    }
    watched = table((rule for rule in RULES.values() if rule.id[:3] in WATCHED), "rules/")
    amp = before + MARKS[0] + watched + MARKS[1] + after
    indexes = {HERE / "rules" / "index.md": index(), HERE / "errors" / "index.md": errors()}
    return {**made, **indexes, HERE / "amp.md": amp}


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
