"""Writes the tables in docs/explanation/comparison.md: what dtypeguard does, and what other tools do.

    python tests/comparison.py

Each cell is what a program answers: `comparison_checkers` and `comparison_training` have one for each row. The costs
come from benchmarks/RESULTS.md. tests/test_comparison.py compares the page with the programs.
"""

import importlib.metadata
import logging
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import comparison_checkers as checkers
import comparison_training as training
import peers
import torch

import dtypeguard

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "comparison.md"
OURS = peers.OURS
PACKAGES = ("torch", "jaxtyping", "beartype", "dltype", "tensor-shape-assert", "lightning")


@dataclass(frozen=True)
class Tool:
    """A column."""

    name: str
    it: Any  # what its rows are called with; None where it is not installed
    packages: tuple[str, ...] = ()  # others whose versions its cells depend on, beside torch's


@dataclass(frozen=True)
class Table:
    name: str
    rows: tuple[Callable[[Any], checkers.Answer], ...]
    tools: tuple[Tool, ...]
    mode: Literal["strict", "lenient"] = "lenient"

    def cell(self, row: Callable[[Any], checkers.Answer], tool: Tool) -> str:
        """What a program answers."""
        with warnings.catch_warnings(), dtypeguard.mode(self.mode):
            warnings.simplefilter("ignore")  # of libraries
            answer = row(tool.it)
        return answer if isinstance(answer, str) else "yes" if answer else "no"

    def markdown(self) -> str:
        lines = [_line("", *(tool.name for tool in self.tools)), _line(*("---",) * (1 + len(self.tools)))]
        lines += [_line(row.__doc__, *(self.cell(row, tool) for tool in self.tools)) for row in self.rows]
        return "\n".join(lines + (costs(self.tools) if self.name == "contracts" else []))


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _checkers() -> tuple[Tool, ...]:
    here = {peer.name: peer for peer in peers.load()[0]}
    tools = []
    for name in (peers.OURS, peers.BEARTYPE, checkers.DLTYPE, checkers.TSA):
        tool = checkers.Checker(name, here[name]) if name in here else None
        tools.append(Tool(name, tool, () if name == peers.OURS else tuple(name.split(" + "))))
    return (*tools, Tool(checkers.BY_HAND, checkers.Checker(checkers.BY_HAND)))


def _training(*names: str) -> tuple[Tool, ...]:
    packages = {training.LIGHTNING: ("lightning",)}
    tools = (Tool(name, name, packages.get(name, ())) for name in names)
    return tuple(tool if None not in map(version, tool.packages) else Tool(tool.name, None) for tool in tools)


def version(package: str) -> str | None:
    """The installed version, or None; without what it was built for."""
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


TABLES = (
    Table("contracts", checkers.ROWS, _checkers(), "strict"),
    Table("precision", training.CHOOSING, _training(training.OURS, training.FSDP, training.LIGHTNING)),
    Table("watching", training.WATCHING, _training(training.OURS, training.ANOMALY, training.DEBUG)),
)


def costs(tools: tuple[Tool, ...]) -> list[str]:
    """The rows of figures, from the results of the benchmarks."""
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    rows = []
    for title, topic, empty in (
        ("a right call takes, against asserts", "`enforce` on a function, eager", "not measured"),
        ("decorating takes, against jaxtyping + beartype", "Decorating 1,000 functions", "nothing"),
        ("its import takes, against jaxtyping + beartype", "Import after torch", "nothing"),
    ):
        section = text.partition(f"\n## {topic}\n")[2].partition("\n## ")[0]
        table = [[cell.strip() for cell in line.split("|")] for line in section.splitlines() if line.startswith("| ")]
        ratios = {cells[1]: cells[3] for cells in table}
        missing = {checkers.BY_HAND: empty}
        rows.append(_line(title, *(ratios.get(tool.name, missing.get(tool.name, "not measured")) for tool in tools)))
    return rows


def versions() -> str:
    """The table of versions."""
    return "\n".join([_line(*PACKAGES), _line(*("---",) * len(PACKAGES)), _line(*map(version, PACKAGES))])


def split(text: str, name: str) -> tuple[str, str, str]:
    """The page before a table, the table, and the page after it."""
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = text.partition(start)
    table, _, after = rest.partition(end)
    return before + start, table, end + after


def main() -> int:
    """Write the tables, if all tools are here."""
    absent = [tool.name for table in TABLES for tool in table.tools if tool.it is None]
    if absent:
        print(f"not installed: {', '.join(absent)}: pip install --group bench --group integration", file=sys.stderr)
        return 1
    text = PAGE.read_text()
    made = {table.name: table.markdown() for table in TABLES} | {"versions": versions()}
    for name, table in made.items():
        before, _, after = split(text, name)
        text = f"{before}\n{table}\n\n{after}"
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    sys.exit(main())
