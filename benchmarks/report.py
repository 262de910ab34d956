"""Tables of results, and the machine they were measured on."""

import importlib.metadata
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field

_UNITS = ((1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_SIGNS = {"<=": "≤", ">=": "≥", "==": "="}


@dataclass(frozen=True)
class Bar:
    """What a figure is held to: a limit, its direction, and how it is written."""

    sign: str
    limit: float
    text: str

    def met(self, value: float) -> bool:
        return {"<=": value <= self.limit, ">=": value >= self.limit, "==": value == self.limit}[self.sign]

    def __str__(self) -> str:
        return f"{_SIGNS[self.sign]} {self.text}"


@dataclass(frozen=True)
class Row:
    """A figure with the bar it is held to, if any."""

    what: str
    value: str
    relative: str = ""
    bar: Bar | None = None
    held: float | None = None  # the figure that the bar is about

    @property
    def met(self) -> str:
        if self.bar is None or self.held is None:
            return ""
        return "yes" if self.bar.met(self.held) else "**no**"


@dataclass
class Table:
    """One topic."""

    title: str
    about: str
    columns: tuple[str, str, str]
    rows: list[Row] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", self.about, ""]
        lines += [f"| {' | '.join((*self.columns, 'bar', 'met'))} |", "|---|--:|--:|--:|---|"]
        for row in self.rows:
            cells = (row.what, row.value, row.relative, str(row.bar or ""), row.met)
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)


def duration(ns: float) -> str:
    """`412 ns`, `16.3 µs`, `1.52 ms`."""
    for scale, unit in _UNITS:
        if abs(ns) >= scale:
            digits = 0 if unit == "ns" or abs(ns / scale) >= 100 else 1 if abs(ns / scale) >= 10 else 2
            return f"{ns / scale:.{digits}f} {unit}"
    return f"{ns:.0f} ns"


def times(ratio: float) -> str:
    """`0.984x`, `1.27x`, `35.7x`."""
    digits = 3 if ratio < 1.1 else 2 if ratio < 10 else 1
    return f"{ratio:.{digits}f}x"


def percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


def at_most(limit: float, text: str) -> Bar:
    return Bar("<=", limit, text)


def at_least(limit: float, text: str) -> Bar:
    return Bar(">=", limit, text)


def exactly(limit: float, text: str) -> Bar:
    return Bar("==", limit, text)


def machine(packages: Iterable[str]) -> str:
    """Cores, processor, versions; no date, so that two runs differ only in figures."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = [
        ("processor", f"{cores} cores, {_processor()}, {platform.machine()}, {platform.system()}"),
        ("Python", f"{platform.python_implementation()} {platform.python_version()}"),
        *((name, _version(name)) for name in packages),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts)])


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            facts = [line.partition(":") for line in lines]
    except OSError:
        return platform.processor() or "unknown"
    known = {name.strip(): value.strip() for name, _, value in facts}
    numbers = ", ".join(f"{name} {known[name]}" for name in ("cpu family", "model", "stepping") if name in known)
    return f"{known.get('model name', 'unknown')} ({numbers})" if numbers else known.get("model name", "unknown")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
