"""Options of `audit` that stand behind the program, where its own arguments are.

No torch here: the command line asks before anything is loaded.
"""

import argparse
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

_EDITS = frozenset(["--diff", "--fix", "--unsafe-fixes"])  # which a program seldom has


def settle(options: argparse.Namespace) -> None:
    """Take `--diff`, `--fix` and `--unsafe-fixes` from a script that has no such options; keep what it got of ours."""
    known = {name for action in options.parser._actions for name in action.option_strings if name.startswith("--")}
    given = list(itertools.takewhile(lambda argument: argument != "--", options.arguments))
    names = [name for name in dict.fromkeys(one.partition("=")[0] for one in given) if name in known]
    code = _code(options) if names else ""
    names = [name for name in names if not _takes(code, name)]
    options.taken = [name for name in names if name in _EDITS.intersection(given) and not options.module]
    options.late = [name for name in names if name not in options.taken]
    options.arguments = [argument for argument in options.arguments if argument not in options.taken]
    for name in options.taken:
        setattr(options, name[2:].replace("-", "_"), True)


def notes(options: argparse.Namespace) -> Iterator[str]:
    """What to say of both."""
    name = f"-m {options.program}" if options.module else options.program
    if options.taken:
        told = f"{' '.join(options.taken)}: taken as an option of audit, as {name} has none of that name"
        yield f"{told}; write it before {name}"
    if options.late:
        told = f"{' '.join(options.late)}: given to the program, as it stands behind it"
        yield f"{told}; an option of audit stands before {name}"


def _code(options: argparse.Namespace) -> str:
    """The program and the modules beside it."""
    program = Path(*options.program.split(".")) if options.module else Path(options.program)
    files = [program.with_suffix(".py"), *(program if options.module else program.parent).glob("*.py")]
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file())


def _takes(code: str, option: str) -> bool:
    """Whether code may take an option: it has it as a text, or as the name of a parameter, a field or an attribute."""
    name = re.escape(option[2:].replace("-", "_"))
    return re.search(rf"""["']{option}["'=]|["']{name}["']|\.{name}\b|\b{name}\s*[:=]""", code) is not None
