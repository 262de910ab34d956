"""Globs as ruff reads them: `*` crosses folders, `/**/` may be none, `{a,b}` is either, `!` in front is "not"."""

import fnmatch
import glob
import os
import re
from collections.abc import Callable
from pathlib import Path


def matcher(pattern: str, root: Path) -> Callable[[str], bool]:
    """Whether a file is meant: by its path, by its path below `root`, or by its name."""
    body = pattern.removeprefix("!")
    forms = [form for part in _braces(body.replace("/**/", "{/**/,/}")) for form in (part, _relative(root, part))]
    compiled, wanted = re.compile("|".join(map(fnmatch.translate, forms))), body == pattern

    def matches(file: str) -> bool:
        path = os.path.abspath(file).replace(os.sep, "/")
        return bool(compiled.match(path) or compiled.match(os.path.basename(file))) is wanted

    return matches


def _relative(root: Path, pattern: str) -> str:
    if os.path.isabs(pattern):
        return pattern
    return glob.escape(root.as_posix()).rstrip("/") + "/" + pattern


def _braces(pattern: str) -> list[str]:
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [form for choice in found[1].split(",") for form in _braces(before + choice + after)]
