"""A baseline: findings that are known, in a file that is kept with the program, so that only new ones fail.

A finding is known by rule, file, function, text of the line, module and dtypes; not by its line's number, so that edits
above it do not make it new, and not by how often it was seen. The same text twice in a function is two findings.
"""

import collections
import dataclasses
import json
import linecache
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..._core.base.frames import installed
from ..files import named, write

SCHEMA = 1
# A finding in the file, by the name that it has in a report's dict.
_FIELDS = {
    "rule": "rule", "file": "file", "function": "function", "source": "source",
    "module": "module_path", "from": "from_dtype", "to": "to_dtype",
}  # fmt: skip
_SITE = re.compile(r"(.*):(\d+), in (.*)", re.DOTALL)

F = TypeVar("F")
Row = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Baseline:
    """What a baseline file holds."""

    path: Path
    rows: collections.Counter[Row]

    def new(self, findings: Iterable[F]) -> list[F]:
        """The findings that are not in it; of several that look the same, those that are too many."""
        left, new = self.rows.copy(), []
        for finding in findings:
            row = _row(finding, self.path.parent)
            if left[row] > 0:
                left[row] -= 1
            else:
                new.append(finding)
        return new


def load(path: str | os.PathLike[str], writes: str = "--write-baseline") -> Baseline:
    """Read a baseline, which the option `writes` writes."""
    file = _absolute(named(path, "baseline.json", "baseline"))
    try:
        data = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no baseline {file}: write it first ({writes})") from None
    except OSError as error:
        raise ValueError(f"the baseline {file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # JSON, UTF-8
        raise ValueError(f"{file} is no baseline, as {writes} writes it: it is no JSON ({error})") from error
    if not isinstance(data, dict) or data.get("kind") != "dtypeguard baseline":
        raise ValueError(f'{file} is no baseline of dtypeguard: it lacks "kind": "dtypeguard baseline"')
    if data.get("schema") != SCHEMA:
        raise ValueError(f"{file} is a baseline of schema {data.get('schema')!r}, not {SCHEMA}: write it anew")
    rows = data.get("findings")
    if not isinstance(rows, list):
        raise ValueError(f'{file} is no baseline: "findings" is not a list')
    return Baseline(file, collections.Counter(_read_row(row, file, number) for number, row in enumerate(rows)))


def _read_row(row: Any, file: Path, number: int) -> Row:
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in _FIELDS):
        raise ValueError(f"{file} is no baseline: findings[{number}] needs the texts {', '.join(_FIELDS)}")
    return tuple(row[key] for key in _FIELDS)


def save(findings: Iterable[Any], path: str | os.PathLike[str]) -> Path:
    """Write findings as a baseline, all or nothing."""
    file = _absolute(named(path, "baseline.json"))
    write_rows(rows_of(findings, file), file)
    return file


def rows_of(findings: Iterable[Any], path: str | os.PathLike[str]) -> list[Row]:
    """Findings as a baseline at `path` would hold them."""
    folder = _absolute(path).parent
    return [_row(finding, folder) for finding in findings]


def write_rows(rows: Iterable[Iterable[str]], path: str | os.PathLike[str]) -> None:
    """Write what `rows_of` made."""
    data = {
        "kind": "dtypeguard baseline",
        "schema": SCHEMA,
        "findings": [dict(zip(_FIELDS, row, strict=True)) for row in sorted(map(tuple, rows))],
    }
    write(path, json.dumps(data, indent=2) + "\n", "baseline.json")


def _absolute(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(path))


def _row(finding: Any, folder: Path) -> Row:
    """What a finding is known by; empty texts for what it does not have."""
    names = ("site", *_FIELDS.values())
    facts = finding if isinstance(finding, Mapping) else {name: getattr(finding, name) for name in names}
    values = {key: facts.get(name) for key, name in _FIELDS.items()}
    place = _SITE.fullmatch(facts.get("site") or "")
    if place is not None and values["file"] is None:  # found by a watch, not by an audit
        file, line, function = place.groups()
        values |= {"file": file, "function": function, "source": linecache.getline(file, int(line))}
    values["file"] = values["file"] and _portable(values["file"], folder)
    return tuple("" if value is None else str(value).removeprefix("torch.").strip() for value in values.values())


def _portable(file: str, folder: Path) -> str:
    """A file's path as every machine has it: from the baseline's folder, or from where packages are installed."""
    if file.startswith("<"):  # no file: `python -c`
        return file
    package = installed(os.path.abspath(file))
    if package is not None:
        return f"site-packages/{package}"  # `dist-packages` on other machines
    try:
        return Path(os.path.relpath(file, folder)).as_posix()
    except ValueError:  # another drive
        return Path(file).as_posix()
