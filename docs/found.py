"""Runs the programs of docs/found whose package is installed, and writes output and findings into docs/found.md.

    python docs/found.py

tests/integration/test_found.py compares the page with what is installed.
"""

import contextlib
import importlib
import importlib.metadata
import io
import re
import runpy
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import dtypeguard
from dtypeguard._show.report.causes import causes_of
from dtypeguard._show.report.text import Style, paragraphs
from dtypeguard.results import Finding, Report

HERE = Path(__file__).parent
PAGE, PROGRAMS = HERE / "found.md", HERE / "found"
MARKS = ("<!-- table -->\n", "<!-- end of table -->\n")
_SECTION = re.compile(
    r"^#{2,3} (?P<title>[^\n]+)\n\n"
    r"`(?P<package>[^`]+)` (?P<version>[\d.]+\d)(?:, `(?P<place>[^`]+)`, \[(?P<rule>DG\d+)\][^\n]*)?\n"
    r"(?:(?!^##).)*?^<!-- found/(?P<name>\w+)\.py -->\n```python\n(?:(?!^```).)*?```\n\n"
    r"It prints:\n\n```text\n(?P<prints>.*?)```\n"
    r"(?:(?:(?!^##).)*?^dtypeguard says:\n\n```text\n(?P<says>.*?)```\n)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Section:
    """A fault on the page: what was seen, and in which version."""

    name: str
    title: str
    package: str
    version: str
    place: str | None  # file and line of the finding; None if the audit does not see the fault
    rule: str | None
    prints: str
    says: str | None

    def unusable(self) -> str | None:
        """Why the program cannot run here."""
        try:
            installed = importlib.metadata.version(self.package).split("+")[0]
            if installed != self.version:
                return f"seen in {self.package} {self.version}, installed is {installed}"
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for module in re.findall(
                    r"^(?:from|import) ([\w.]+)", (PROGRAMS / f"{self.name}.py").read_text(), re.M
                ):
                    importlib.import_module(module)
        except importlib.metadata.PackageNotFoundError:
            return f"{self.package} is not installed"
        except Exception as error:  # a package that was built for another machine raises anything
            return f"{self.package} cannot be imported: {error}"
        return None

    def chosen(self, findings: Report) -> list[Finding]:
        """Those of its rule at its place."""
        here = [one for one in findings if one.rule == self.rule]
        return [one for one in here if f"{_inside(one.file or '')}:{one.line}" == self.place]


def sections(page: str) -> list[Section]:
    return [Section(**match.groupdict()) for match in _SECTION.finditer(page)]


def run(name: str) -> tuple[str, Report]:
    """What a program prints, with the error it ends in, and what an audit finds in it."""
    printed = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        warnings.simplefilter("ignore")
        with dtypeguard.audit(values=True) as report:
            try:
                runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")
            except Exception as error:  # the fault itself
                print(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return printed.getvalue(), report.findings


def said(findings: list[Finding]) -> str:
    return "\n".join(paragraphs(causes_of(map(_short, findings)), Style(width=100))) + "\n"


def _short(finding: Finding) -> Finding:
    """The finding with paths as the page has them, so that lines are folded alike on every machine.

    A model has a number behind its class (`Net#2`) if another of the class is still alive, which differs between runs.
    """
    names = ("message", "label", "fix", "site", "module_path")
    texts = {name: re.sub(r"(?<=\w)#\d+\b", "", _inside(getattr(finding, name) or "")) for name in names}
    spots = tuple(replace(spot, file=_inside(spot.file), label=_inside(spot.label)) for spot in finding.spots)
    edit = None if finding.edit is None else spots[finding.spots.index(finding.edit)]
    return replace(finding, **texts, spots=spots, edit=edit)


def _inside(text: str) -> str:
    """Without the folders that packages and programs are in."""
    return re.sub(r"[^\s:]*/site-packages/|[^\s:]*?(?=\bfound/\w+\.py)", "", text)


def slug(title: str) -> str:
    """The anchor of a heading, here and on GitHub."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def table(page: str) -> str:
    """All faults that an audit finds, with links to their sections."""
    rows = [
        f"| `{one.package}` | {one.version} | [{one.title}](#{slug(one.title)}) | [{one.rule}](rules/{one.rule}.md) |"
        for one in sections(page)
        if one.rule
    ]
    return "\n".join(["| package | version | what happens | rule |", "|---|---|---|---|", *rows, ""])


def main() -> None:
    page = PAGE.read_text()
    for section in sections(page):
        if why := section.unusable():
            print(f"{section.name}: {why}")
            continue
        prints, findings = run(section.name)
        found = section.chosen(findings)
        print(f"{section.name}: {len(found)} found")
        match = next(match for match in _SECTION.finditer(page) if match["name"] == section.name)
        if section.rule:
            page = page[: match.start("says")] + said(found[:1]) + page[match.end("says") :]
        page = page[: match.start("prints")] + prints + page[match.end("prints") :]
    begin, end = (page.index(mark) for mark in MARKS)
    PAGE.write_text(page[:begin] + MARKS[0] + table(page) + page[end:])


if __name__ == "__main__":
    main()
