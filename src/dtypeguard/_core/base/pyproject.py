"""`[tool.dtypeguard]` in pyproject.toml: where it is, and what is in it.

The pytest plugin reads it where torch must not be imported.
"""

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME, TABLE = "pyproject.toml", "[tool.dtypeguard]"
KEYS = ("select", "ignore", "severity", "per-file-ignores", "source", "omit", "mode", "casting")


def find(folder: str | Path | None = None) -> tuple[Path | None, Mapping[str, Any]]:
    """The nearest pyproject.toml at or above a folder that has our table, and the table.

    Raises:
        ValueError: the file cannot be read, or the table has a key that there is not.
    """
    try:
        start = Path(folder or os.getcwd()).absolute()
    except OSError:  # the current folder is gone
        return None, {}
    for parent in (start, *start.parents):
        file = parent / NAME
        if os.path.isfile(file):  # False also where the folder may not be looked into
            tool = _load(file).get("tool")
            if isinstance(tool, dict) and "dtypeguard" in tool:
                return file, _checked(file, tool["dtypeguard"])
    return None, {}


def _load(file: Path) -> dict[str, Any]:
    try:
        return _parsed(file.read_bytes())
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:  # TOML, UTF-8
        raise ValueError(f"{file} is no valid TOML: {error}") from error


@functools.lru_cache(maxsize=8)
def _parsed(text: bytes) -> dict[str, Any]:
    """Each audit asks, and to parse a file takes longer than all else at its beginning."""
    import tomllib  # here, and below: most programs have no such table, and need neither

    return tomllib.loads(text.decode())


def _checked(file: Path, table: Any) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ValueError(f"{file}: {TABLE}={table!r} is not a table")
    for key in table:
        if key not in KEYS:
            import difflib

            near = difflib.get_close_matches(key, KEYS, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"{file}: {TABLE} has no key {key!r}{hint}: use {', '.join(KEYS)}")
    return table
