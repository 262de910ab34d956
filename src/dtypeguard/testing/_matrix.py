"""What `check_module` found: a matrix of cells, to print, to keep, to look at; and the one failure that it raises."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch

from .._core.base.dtypes import dtype_title, name_of
from .._core.base.errors import render
from .._show.result import Result, Row

Status = Literal["FAILED", "trap", "cast", "refused", "same", "unsupported"]
Guarding = Literal["accepts", "repairs", "refuses"]
# How a cell came out, the worst first, and what the legend says. Of several inputs the worst counts.
STATUSES: dict[Status, str] = {
    "FAILED": "a property does not hold",
    "trap": "bare PyTorch computes with the wrong dtype, in silence",
    "cast": "a guard repairs it in lenient mode, and names it in strict mode",
    "refused": "lenient mode refuses too: the cast loses values, or is not allowed",
    "same": "nothing to repair: guarded and bare agree, bit for bit",
    "unsupported": "the bare model raises for inputs of the right dtype",
}
_KINDS = {"FAILED": "error", "trap": "warning", "cast": "info", "same": "good"} | dict.fromkeys(
    ("refused", "unsupported"), "none"
)
_WIDE = 12  # columns of the printed matrix


@dataclass(eq=False)
class Cell(Row):
    """One combination that was tested, and its outcome.

    Attributes:
        parameter_dtype: None for a model without parameters, and for a model of several dtypes that is not converted.
        input_dtype: the dtype of all floating inputs; None if there are none.
        region: the dtype of the autocast region, or None.
        parameter_device, input_device: the devices.
        status: 'same', 'cast', 'trap', 'refused', 'unsupported' or 'FAILED'.
        bare: the first line of the error that PyTorch raises without a guard; None if it raises none.
        outputs: the floating dtypes of the results without a guard.
        ideal: the error that PyTorch raises even for inputs of the right dtype and device; None if it raises none.
        guard: what a guard in lenient mode does with the input: it 'accepts', 'repairs' or 'refuses' it.
        trap: whether PyTorch without a guard raises no error and computes something else than with the right dtype.
        inputs: how many inputs were tested.
    """

    parameter_dtype: torch.dtype | None
    input_dtype: torch.dtype | None
    region: torch.dtype | None
    parameter_device: torch.device
    input_device: torch.device
    status: Status = "unsupported"
    bare: str | None = None
    outputs: tuple[torch.dtype, ...] = ()
    ideal: str | None = None
    guard: Guarding = "accepts"
    trap: bool = False
    inputs: int = 0

    def __str__(self) -> str:
        region = "no autocast" if self.region is None else f"autocast {name_of(self.region)}"
        places = _places(self.parameter_device, self.input_device)
        dtypes = f"parameters {dtype_title(self.parameter_dtype)}, input {dtype_title(self.input_dtype)}"
        return f"{dtypes}, {region}, {places}"


@dataclass(eq=False)
class Failure(Row):
    """A property that does not hold.

    Attributes:
        property, rule: its name, and what it says.
        cell: the cell in which it does not hold.
        message: what is wrong, in one line.
        input: the smallest input that shows it.
        expected, got: the expected and the actual result.
        fix: what to look at, or to write.
        source: the page of the docs that describes it.
    """

    property: str
    rule: str
    cell: Cell
    message: str
    input: str
    expected: str
    got: str
    fix: str
    source: str


class CheckError(AssertionError):
    """A property of a model does not hold. The attribute `report` has the whole report."""

    report: "ModuleReport"


class Table(NamedTuple):
    """The matrix of one pair of devices; a row has the parameters' dtype, autocast's, and a cell for each column."""

    title: str
    columns: list[torch.dtype | None]
    rows: list[tuple[torch.dtype | None, torch.dtype | None, list[Cell]]]


@dataclass(eq=False)
class ModuleReport(Result):
    """What `check_module` found.

    Attributes:
        module: the model's class.
        cells: every combination that was tested.
        failures: the properties that do not hold.
    """

    kind: ClassVar[str] = "check_module"

    module: str
    cells: list[Cell] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def traps(self) -> list[Cell]:
        """The cells in which PyTorch computes with a wrong dtype or device and raises no error."""
        return [cell for cell in self.cells if cell.trap]

    def _data(self) -> dict[str, Any]:
        failures = [vars(failure) | {"cell": str(failure.cell)} for failure in self.failures]
        return {"module": self.module, "cells": self.cells, "failures": failures}

    def _heading(self) -> str:
        return f"{self.module}: what dtypes do to it"

    def _cell(self) -> tuple[Any, ...]:
        from .._show.fragment import badge, folded, joined, listed, plain, table

        def rows(one: Table) -> Iterator[tuple[Any, ...]]:
            for dtype, region, cells in one.rows:
                badges = (badge(cell.status, _KINDS[cell.status]) for cell in cells)
                yield dtype_title(dtype), dtype_title(region, "-"), *badges

        legend = (joined(badge(status, _KINDS[status]), text) for status, text in self.legend())
        notes = [text for part in (self._trapped(), self._unsupported()) if (text := "\n".join(part).strip())]
        return (
            self.head(),
            *(
                folded(joined(badge("FAILED", "error"), f.property, f.message), plain(render(f.message, _facts(f))))
                for f in self.failures
            ),
            *(
                table(one.title, ("parameters", "region", *map(dtype_title, one.columns)), rows(one))
                for one in self.tables()
            ),
            listed(legend),
            *(folded(text.partition("\n")[0], plain(text.partition("\n")[2])) for text in notes),
        )

    def __str__(self) -> str:
        legend = (f"  {status:<{_WIDE}}{text}" for status, text in self.legend())
        return "\n".join([self.head(), *self._matrices(), "", *legend, *self._trapped(), *self._unsupported()])

    def __repr__(self) -> str:
        return f"<module report: {self.head()}>"

    def head(self) -> str:
        """The module, and how much was found."""
        counts = ((len(self.cells), "cell"), (len(self.traps), "trap"), (len(self.failures), "failure"))
        unsupported = sum(cell.status == "unsupported" for cell in self.cells)
        also = [f"{unsupported} unsupported"] if unsupported else []
        return f"{self.module}: {', '.join([*(_number(*count) for count in counts), *also])}"

    def tables(self) -> Iterator[Table]:
        """A table for each pair of devices."""
        for devices, cells in _grouped(self.cells, "parameter_device", "input_device"):
            columns = list(dict.fromkeys(cell.input_dtype for cell in cells))
            rows = _grouped(cells, "parameter_dtype", "region")
            yield Table(_places(*devices), columns, [(dtype, region, row) for (dtype, region), row in rows])

    def _matrices(self) -> Iterator[str]:
        for table in self.tables():
            yield f"\n{table.title}"
            yield _line("parameters", "region", *(dtype_title(dtype) for dtype in table.columns))
            for dtype, region, cells in table.rows:
                yield _line(dtype_title(dtype), dtype_title(region, "-"), *(c.status for c in cells))

    def legend(self) -> list[tuple[str, str]]:
        """The statuses that occur."""
        there = {cell.status for cell in self.cells}
        return [(status, text) for status, text in STATUSES.items() if status in there]

    def _trapped(self) -> Iterator[str]:
        if self.traps:
            yield "\ntraps: what bare PyTorch computes in silence"
            yield "  " + _line("parameters", "input", "gives", "a guard", "region")
        alike = ("parameter_dtype", "input_dtype", "outputs", "guard", "parameter_device", "input_device")
        for (dtype, given, outputs, guard, mine, other), cells in _grouped(self.traps, *alike):
            result = ", ".join(map(name_of, outputs)) or "-"
            regions = ", ".join(dtype_title(cell.region, "-") for cell in cells)
            devices = "" if mine == other else f", from {other} to {mine}"
            yield "  " + _line(dtype_title(dtype), dtype_title(given), result, guard, regions + devices)

    def _unsupported(self) -> Iterator[str]:
        cells = [cell for cell in self.cells if cell.status == "unsupported"]
        if cells:
            yield "\nunsupported: what PyTorch raises for inputs of the right dtype"
        for (text,), found in _grouped(cells, "ideal"):
            yield f"  {_number(len(found), 'cell')}: {text}"


def failed(report: ModuleReport) -> CheckError:
    """The failure of a report: the first in full, then how many there are, then the matrix."""
    first, *more = report.failures
    others = [f"{count} x {name}" for name, count in Counter(failure.property for failure in more).items()]
    text = render(f"{report.module}: {first.message}", _facts(first, "; ".join(others)))
    error = CheckError(f"{text}\n\n{report}")
    error.report = report
    return error


def _facts(failure: Failure, others: str = "") -> list[tuple[str, str]]:
    rows = {
        "property": f"{failure.property}: {failure.rule}",
        "cell": str(failure.cell),
        "input": failure.input,
        "expected": failure.expected,
        "got": failure.got,
        "look at": failure.fix,
        "see": failure.source,
        "also": others,
    }
    return [(key, text) for key, text in rows.items() if text]


# ---------------------------------------------------------------- text


def _places(mine: torch.device, other: torch.device) -> str:
    return f"on {mine}" if mine == other else f"parameters on {mine}, input on {other}"


def _line(*texts: str) -> str:
    return "".join(f"{text:<{_WIDE - 1}} " for text in texts).rstrip()


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _grouped(cells: Iterable[Cell], *names: str) -> list[tuple[tuple[Any, ...], list[Cell]]]:
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(getattr(cell, name) for name in names), []).append(cell)
    return list(groups.items())
