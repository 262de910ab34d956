"""What `dryrun` found: a table of cells, to print, to ask, to keep, to look at."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..._core.base.dtypes import FLOATING, FloatName, dtype_of, dtype_title, name_of
from ..._core.base.errors import render
from ..._core.base.options import explained
from ..._show.chips import short
from ..._show.result import Drawn
from ..._show.svg import Matrix
from ..._show.text import first_few, modules_shown, number, wrapped
from ..formats.table import FORMATS
from .cells import DryrunCell, Status

Dtype = torch.dtype | FloatName | None
# What became of a cell, and what the legend says.
STATUSES: dict[Status, str] = {
    "runs": "PyTorch computes it; the dtypes are those of what comes out",
    "repaired": "PyTorch refuses it; a guard in lenient mode casts, and it runs",
    "refused": "PyTorch refuses it, with a guard in lenient mode too",
    "unknown": "it depends on values that are not computed",
}
_COLUMNS = 78  # of the lines of a list
_REASONS = 3  # of the refusals of an operation
_NAMES = 6  # of modules
_REGION = "*"  # the dtype of the region
_DTYPE = re.compile(r"\b(?:[Bb]?[Ff]loat(?:16|32|64)?|Half|Double|bf16|f16|f32|f64)\b")  # in what torch and we say
_PACKAGES = re.compile(r"[^\s(`]*[\\/](?:site|dist)-packages[\\/]")  # where they are installed says nothing


class DryrunTable(Drawn):
    """What `dryrun` found. `table[parameters, inputs, region]` is a cell; iterating gives all of them.

    Attributes:
        module: the model's class.
        device: where the kernels run that were asked.
        cells: one `DryrunCell` for each combination of dtypes.
    """

    kind = "dryrun"

    def __init__(self, module: str, device: torch.device, cells: list[DryrunCell]) -> None:
        self.module: str = module
        self.device: torch.device = device
        self.cells: list[DryrunCell] = cells

    def __iter__(self) -> Iterator[DryrunCell]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def __getitem__(self, key: tuple[Dtype, Dtype, Dtype]) -> DryrunCell:
        if not isinstance(key, tuple) or len(key) != 3:
            raise TypeError(f"table[{key!r}]: write table[parameters, inputs, region], three dtypes or their names")
        wanted = tuple(None if value is None else dtype_of(value, "dtype") for value in key)
        found = next((cell for cell in self.cells if _key(cell) == wanted), None)
        if found is None:
            other = next((dtype for dtype in wanted if dtype is not None and dtype not in FLOATING), None)
            if other is not None:
                raise KeyError(no_cell(other))
            kinds = zip(("parameters", "inputs", "region"), zip(*map(_key, self.cells), strict=True), strict=True)
            there = "; ".join(f"{kind} {_listed(dict.fromkeys(dtypes))}" for kind, dtypes in kinds)
            asks = "dryrun(model, batch, dtype=..., region=...) takes others"
            raise KeyError(f"no cell has {_listed(wanted)}; there are {there}: {asks}")
        return found

    @explained
    def assert_runs(self, parameters: Dtype, inputs: Dtype = None, region: Dtype = None) -> None:
        """Raise AssertionError unless a cell runs without a guard.

        Args:
            parameters: their dtype, or its name.
            inputs: the dtype of floating inputs; default: that of the parameters.
            region: the dtype of an autocast region; default: no region.

        Raises:
            AssertionError: with the refusal and its line.
            KeyError, ValueError: if there is no such cell, or no such dtype.
        """
        __tracebackhide__ = True
        floating = any(cell.inputs is not None for cell in self.cells)
        cell = self[parameters, (parameters if inputs is None else inputs) if floating else None, region]
        if cell.status != "runs":
            error, *born = _PACKAGES.sub("", cell.error or "").split("\n")
            fix = cell.finding.fix if cell.finding is not None else ""
            chain = f"\n{'':13}".join(map(str.strip, born))
            rows = {"cell": f"{cell.title}, on {self.device}", "through": chain, "cast": "; ".join(cell.repairs)}
            title = f"{self.module} does not run ({cell.status}): {error}"
            raise AssertionError(render(title, ((key, text) for key, text in {**rows, "help": fix}.items() if text)))

    def _data(self) -> dict[str, Any]:
        return {"module": self.module, "device": self.device, "cells": self.cells}

    def _heading(self) -> str:
        return f"{self.module}: in which dtypes does it run?"

    def _picture(self) -> Matrix:
        from .page import matrix_of

        return matrix_of(self, outputs)

    def _cell(self) -> tuple[Any, ...]:
        from .page import parts_of

        return parts_of(self, STATUSES)

    # ------------------------------------------------------------ as text

    def __repr__(self) -> str:
        return f"<dryrun: {self.head()}>"

    def __str__(self) -> str:
        answers = self.answers()
        parts = [*answers, *[""] * bool(answers), self.head(), *self._matrix(), *self._legend()]
        for title, lines in (*self.troubles(), *self.computes(), *self.born()):
            parts += ["", *wrapped(title)]
            for line in lines:
                depth = len(line) - len(line.lstrip())
                parts += wrapped(f"  {line}", " " * (depth + 8))
        return "\n".join(parts)

    def answers(self) -> list[str]:
        """For each dtype, what becomes of the model in it, without a region and with inputs of that dtype."""
        none = all(cell.parameters is None for cell in self.cells)  # parameters, as in a loss
        own = [cell for cell in self.cells if cell.region is None and (none or _alike(cell))]
        if len(self) == 1 or not own:  # then the head has it, or nothing was asked
            return []
        told = ((dtype_title(cell.parameters or cell.inputs), cell.status) for cell in own)
        return [f"{self.module} in {dtype} on {self.device}: {status}" for dtype, status in told]

    def head(self) -> str:
        """The module, whose kernels were asked, and how much was found."""
        counts = Counter(cell.status for cell in self.cells)
        verbs = {"runs": "runs" if counts["runs"] == 1 else "run"}
        what = ", ".join(f"{counts[status]} {verbs.get(status, status)}" for status in STATUSES if counts[status])
        what = f"1 cell, {self.cells[0].status}" if len(self) == 1 else f"{number(len(self), 'cell')}, {what}"
        return f"{self.module}: {what}; kernels of {self.device}, torch {torch.__version__}"

    def columns(self) -> list[torch.dtype | None]:
        return list(dict.fromkeys(cell.inputs for cell in self.cells))

    def rows(self) -> list[tuple[torch.dtype | None, torch.dtype | None, list[DryrunCell]]]:
        """The dtype of parameters, that of the region, and a cell for each column."""
        rows = _grouped((cell.parameters, cell.region, cell) for cell in self.cells)
        return [(*key, cells) for key, cells in rows]

    def _matrix(self) -> Iterator[str]:
        heads = ("parameters", "region", *(dtype_title(dtype) for dtype in self.columns()))
        rows = [
            (dtype_title(parameters), dtype_title(region, "-"), *(f"{c.status} {outputs(c)}".strip() for c in cells))
            for parameters, region, cells in self.rows()
        ]
        widths = [max(map(len, column)) + 2 for column in zip(heads, *rows, strict=True)]
        yield ""
        for row in (heads, *rows):
            yield "".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()

    def _legend(self) -> Iterator[str]:
        there = {cell.status for cell in self.cells}
        yield ""
        yield from (f"  {status:<12}{text}" for status, text in STATUSES.items() if status in there)

    def troubles(self) -> Iterator[tuple[str, list[str]]]:
        """For each status but `runs`, the lines that are to blame, what is raised there, and what a guard casts."""
        for status in list(STATUSES)[1:]:
            cells = [cell for cell in self.cells if cell.status == status]
            cells.sort(key=lambda cell: torch.float64 in (cell.parameters, cell.inputs))  # which few ask about
            lines = []
            for (refused,), found in _grouped((_refusal(cell)[0], cell) for cell in cells):
                fixes = _fixes(found) if status == "refused" else []
                lines += _told(refused, found, each=len(fixes) > 1)
                repaired = dict.fromkeys(text.partition(" from ")[0] for cell in found for text in cell.repairs)
                if repaired:
                    lines.append(f"  a guard casts {', '.join(first_few(list(repaired)))}")
                elif len(fixes) == 1:  # which helps each cell
                    lines += _helps(fixes)
            if lines:
                yield status, [_PACKAGES.sub("", line) for line in lines]

    def computes(self) -> Iterator[tuple[str, list[str]]]:
        """For each autocast region, what the modules compute in with parameters and inputs of one dtype."""
        alike: dict[tuple[Any, ...], list[DryrunCell]] = {}
        for cell in self.cells:
            if cell.region is not None and cell.modules and cell.parameters in (torch.float32, None) and _alike(cell):
                groups = _grouped((_of_region(dtypes, cell), path) for path, dtypes in cell.modules.items())
                alike.setdefault(tuple((names, *paths) for (names,), paths in groups), []).append(cell)
        for rows, cells in alike.items():
            regions = [dtype_title(cell.region) for cell in cells]
            told = [(names.replace(_REGION, " / ".join(regions)), paths) for names, *paths in rows]
            every = [path.removeprefix(self.module).removeprefix(".") for path in cells[0].modules]
            width = max(len(names) for names, _ in told) + 2
            lines = []
            for names, paths in told:
                own = [path.removeprefix(self.module).removeprefix(".") for path in paths]
                shown = first_few(modules_shown(own, every), _NAMES)
                lines += wrapped(f"{names:<{width}}{', '.join(shown)}", " " * width, _COLUMNS)
            yield f"modules under autocast {' or '.join(regions)}, {dtype_title(cells[0].parameters)} parameters", lines

    def born(self) -> Iterator[tuple[str, list[str]]]:
        """By the dtypes of parameters, the lines at which other dtypes are born, without autocast."""
        cells = [c for c in self.cells if c.region is None and c.births and _alike(c)]
        dtypes: dict[str, list[str]] = {}
        for cell in cells:
            for birth in cell.births:
                dtypes.setdefault(_PACKAGES.sub("", birth), []).append(dtype_title(cell.parameters))
        for (titles,), births in _grouped((tuple(titles), birth) for birth, titles in dtypes.items()):
            yield f"born inside, {', '.join(titles)} parameters", first_few(births)


def no_cell(dtype: torch.dtype) -> str:
    """Why no table has a dtype that is not floating, and what measures that."""
    name, asked = name_of(dtype), ", ".join(sorted(map(name_of, FLOATING)))
    costs = f'; compare(model, batch, format="{name}") measures what its weights cost' * (name in FORMATS)
    return f"no cell has {name}: dryrun asks floating dtypes, {asked}{costs}"


def outputs(cell: DryrunCell) -> str:
    """The dtypes of what comes out, each once: `bf16,f32`."""
    return ",".join(dict.fromkeys(short(name_of(dtype)) for dtype in cell.outputs))


def _key(cell: DryrunCell) -> tuple[torch.dtype | None, ...]:
    return cell.parameters, cell.inputs, cell.region


def _alike(cell: DryrunCell) -> bool:
    """Whether inputs have the dtype of the parameters, or none."""
    return cell.inputs in (cell.parameters, None)


def _of_region(dtypes: Iterable[torch.dtype], cell: DryrunCell) -> str:
    """Names of dtypes, with a sign for that of the region, as regions of two dtypes often do the same."""
    return ", ".join(_REGION if dtype is cell.region else name_of(dtype) for dtype in dtypes)


def _refusal(cell: DryrunCell) -> tuple[str, str]:
    """Which operation was refused, with its line; and why, which has the dtypes of the cell."""
    first = (cell.error or "").partition("\n")[0]
    what, refused, why = first.partition(" was refused: ")
    return what + refused.rstrip(": "), why


def _fixes(found: list[DryrunCell]) -> list[str]:
    """What is advised for cells, each advice once; empty for those with none."""
    return list(dict.fromkeys(cell.finding.fix if cell.finding is not None else "" for cell in found))


def _helps(fixes: list[str]) -> list[str]:
    return [f"  help: {fix}" for fix in fixes if fix]


def _told(refused: str, found: list[DryrunCell], each: bool) -> list[str]:
    """An operation, and each reason for which it was refused, with its cells; `each` with its own help.

    Reasons that differ in their dtypes are one, which is told of the first cell.
    """
    groups = [cells for _, cells in _grouped((_DTYPE.sub("", _refusal(cell)[1]), cell) for cell in found)]
    count = number(len(found), "cell")
    if len(groups) == 1:
        how, why = _told_of(found)
        return [f"{count}: {refused}{why and f'{how}: {why}'}", *_details(found), *(_each_helps(found) if each else [])]
    lines = [f"{count}: {refused}, for {len(groups)} reasons:"]
    for cells in groups[:_REASONS]:
        helps = [f"  {line}" for line in _each_helps(cells)] if each else []
        how, why = _told_of(cells)
        lines += [f"  {number(len(cells), 'cell')}{how}: {why}", *_details(cells), *helps]
    rest = sum(map(len, groups[_REASONS:]))
    return [*lines, f"  ... {number(len(groups) - _REASONS, 'more reason')}, {number(rest, 'cell')}"] if rest else lines


def _told_of(cells: list[DryrunCell]) -> tuple[str, str]:
    """Whether the reason of the first cell is an example of theirs, and that reason."""
    whys = [_refusal(cell)[1] for cell in cells]
    return ", for example" * (len({*whys}) > 1), whys[0]


def _each_helps(cells: list[DryrunCell]) -> list[str]:
    """The advice for cells; of several that differ in their dtypes the first."""
    return _helps([fixes[0] for _, fixes in _grouped((_DTYPE.sub("", fix), fix) for fix in _fixes(cells))])


def _details(cells: list[DryrunCell]) -> list[str]:
    """The lines at which the dtype of an operand was born."""
    return [f"  {line}" for line in (cells[0].error or "").split("\n")[1:]]


def _listed(dtypes: Iterable[torch.dtype | None]) -> str:
    return ", ".join(dtype_title(dtype, "None") for dtype in dtypes)


def _grouped(rows: Iterable[tuple[Any, ...]]) -> list[tuple[tuple[Any, ...], list[Any]]]:
    """The last elements of tuples, by the others."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for *key, item in rows:
        groups.setdefault(tuple(key), []).append(item)
    return list(groups.items())
