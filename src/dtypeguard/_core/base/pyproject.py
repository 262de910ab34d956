"""`[tool.dtypeguard]` in pyproject.toml: where it is, whether all in it is right, and at which line it is not.

And the mode that the environment names. The pytest plugin and the command line read both where torch must not be
imported.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from . import pages

NAME, TABLE = "pyproject.toml", "[tool.dtypeguard]"
_NEAR, _OTHERS = 0.85, frozenset(["typeguard"])  # as like as two names are that one is, and tools whose names are
COMMANDS = ("audit", "compare", "describe", "diff", "dryrun", "manifest")  # each has a table for its options
LEGAL = {
    "severity": ("info", "warning", "error"),
    "mode": ("strict", "lenient", "warn", "off"),
    "casting": ("safe", "precision", "promote", "unsafe"),
}


def find(
    folder: str | Path | None = None, options: Mapping[str, Iterable[str]] | None = None
) -> tuple[Path | None, Mapping[str, Any]]:
    """The nearest pyproject.toml at or above a folder that has our table, and the table.

    Args:
        folder: where the search begins; None: the current one.
        options: the options of each command, to tell where a key belongs. What is in the tables of commands is looked
            at by `_tools.settings`.

    Raises:
        ValueError: the file cannot be read; or a key or a value is wrong, with its line and what is legal.
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
                return file, _checked(file, tool["dtypeguard"], options or {})
            for name in tool if isinstance(tool, dict) else ():
                if name not in _OTHERS and near(name, ["dtypeguard"], _NEAR):
                    _misspelt(file, name)
    return None, {}


@functools.cache
def _misspelt(file: Path, name: str) -> None:
    """Say it once: a table of another name is another tool's, and no error."""
    import warnings

    lines = file.read_text().splitlines()
    line = next((count for count, text in enumerate(lines, 1) if name in text), 1)
    text = f"[tool.{name}] is not read (did you mean {TABLE}?)"
    warnings.warn_explicit(text, UserWarning, str(file), line)


def environment() -> str | None:
    """The mode that `DTYPEGUARD_MODE` names, in lower case.

    Raises:
        ValueError: it names none.
    """
    told = os.environ.get("DTYPEGUARD_MODE", "").strip()
    if told and told.lower() not in LEGAL["mode"]:
        legal = ", ".join(map(repr, LEGAL["mode"]))
        meant = near(told, LEGAL["mode"])
        raise ValueError(f"the environment variable DTYPEGUARD_MODE={told!r} is not a mode{meant}: use one of {legal}")
    return told.lower() or None


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


# --- what is wrong ------------------------------------------------------------------------------------------------


def wrong(file: Path, keys: tuple[str, ...], what: str) -> ValueError:
    """An error about a key below our table: the file and the line, the table of the key, and what is wrong."""
    table = f"[tool.dtypeguard.{keys[0]}]" if len(keys) > 1 and keys[0] in COMMANDS else TABLE
    return ValueError(f"{file}:{line_of(file.read_bytes(), keys)}: {table} {what}")


def near(word: Any, legal: Iterable[str], cutoff: float = 0.7) -> str:
    """Which of the legal words was meant, in parentheses; nothing if there is none so much like it."""
    import difflib

    words = {one.lower().replace("_", "-"): one for one in legal}
    found = difflib.get_close_matches(str(word).lower().replace("_", "-"), words, 1, cutoff)
    return f" (did you mean {words[found[0]]!r}?)" if found else ""


def no_attribute(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have."""
    names = [one for one in vars(sys.modules[module]) if not one.startswith("_")]
    meant = "" if name.startswith("_") else near(name, names)
    return AttributeError(f"module {module!r} has no attribute {name!r}{meant}")


def one_of(legal: Iterable[str]) -> Callable[[str], str]:
    """The `type` of an option that takes one of some words; of `choices` argparse does not tell which was meant.

    The function raises what argparse shows as a wrong use.
    """
    words = [*legal]

    def read(value: str) -> str:
        if value not in words:
            from argparse import ArgumentTypeError

            told = f"invalid choice: {value!r}{near(value, words)} (choose from {', '.join(map(repr, words))})"
            raise ArgumentTypeError(told)
        return value

    return read


def no_rule(name: str) -> str:
    """That there is no rule of a name, which may be meant, and what there is."""
    rules = [one for one in pages.entries() if one.kind in LEGAL["severity"]]
    meant = pages.meant(name, rules)
    families = ", ".join(dict.fromkeys(one.id[:3] for one in rules))
    return f"is no rule{meant and f' (did you mean {meant!r}?)'}: use ids or names, such as DG101, or {families}"


def literal(value: Any) -> str:
    """A value as TOML has it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def line_of(text: bytes, keys: tuple[str, ...]) -> int:
    """The line at which a key below our table is written, counted from 1.

    A statement of TOML may have several lines, and only a parser knows where it ends: the first lines of the file are
    parsed, one more each time, until the key is there. What could be parsed before ends above it.
    """
    import tomllib

    lines, above = text.decode().replace("\r\n", "\n").split("\n"), 0
    for count in range(1, len(lines) + 1):
        try:
            value: Any = tomllib.loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
        for key in ("tool", "dtypeguard", *keys):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            break
        above = count
    return above + 1


# --- what is right ------------------------------------------------------------------------------------------------


def _checked(file: Path, table: Any, options: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise wrong(file, (), f"is not a table, but {literal(table)}")
    for key, value in table.items():
        if key in KEYS:
            KEYS[key](file, (key,), value)
        elif key not in COMMANDS:
            homes = [f"[tool.dtypeguard.{name}]" for name, keys in options.items() if key in keys]
            legal = f"use {', '.join(KEYS)}, or the tables of commands: {', '.join(COMMANDS)}"
            meant = f"; it is one of {' and '.join(homes)}" if homes else f"{near(key, (*KEYS, *COMMANDS))}: {legal}"
            raise wrong(file, (key,), f"has no key {key!r}{meant}")
        elif not isinstance(value, dict):
            raise wrong(file, (key,), f"{key}={literal(value)} is not a table: write [tool.dtypeguard.{key}]")
    return table


def _word(file: Path, keys: tuple[str, ...], value: Any) -> None:
    """One of the legal words of its key, in any case."""
    (key,) = keys
    if not isinstance(value, str) or value.lower() not in LEGAL[key]:
        legal = ", ".join(map(repr, LEGAL[key]))
        raise wrong(file, keys, f"{key}={literal(value)} is not a {key}{near(value, LEGAL[key])}: use one of {legal}")


def _rules(file: Path, keys: tuple[str, ...], value: Any) -> None:
    """A list of rules: ids, names, families."""
    where = ".".join([keys[0], *map(repr, keys[1:])])
    for name in value if isinstance(value, list) else [value]:
        if not isinstance(name, str) or not isinstance(value, list):
            raise wrong(file, keys, f"{where}={literal(name)} is not a list of rules, as in ['DG102', 'DG5']")
        if name not in _names():
            raise wrong(file, keys, f"{where}={name!r} {no_rule(name)}")


def _texts(file: Path, keys: tuple[str, ...], value: Any) -> None:
    """A text, or a list of texts."""
    (key,) = keys
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, str):
            raise wrong(file, keys, f"{key}={literal(one)} is not a list of strings, as in ['src/']")
        if not one:
            raise wrong(file, keys, f"{key}={literal(one)} names nothing")


def _globs(file: Path, keys: tuple[str, ...], value: Any) -> None:
    """A table of lists of rules, by patterns of files."""
    (key,) = keys
    if not isinstance(value, dict):
        raise wrong(file, keys, f"{key}={literal(value)} is not a table, as in {{'tests/**' = ['DG102']}}")
    for pattern, rules in value.items():
        _rules(file, (key, pattern), rules)


@functools.cache
def _names() -> tuple[str, ...]:
    rules = [one for one in pages.entries() if one.kind in LEGAL["severity"]]
    return (*dict.fromkeys(one.id[:3] for one in rules), *(name for one in rules for name in (one.id, one.name)))


# What the whole project goes by, however it is run; each value is checked, and an error raised.
KEYS: dict[str, Callable[[Path, tuple[str, ...], Any], None]] = {
    "select": _rules, "ignore": _rules, "severity": _word, "per-file-ignores": _globs, "source": _texts, "omit": _texts,
    "mode": _word, "casting": _word,
}  # fmt: skip
