"""Where the result of a command goes: to standard output, and to the files that its options name."""

import argparse
import os

from .._core.base.usage import Failed, Usage
from .._show.files import writable, write
from .._show.result import Result

STDOUT = "-"
_STREAMS = ("json", "output")  # options where - is standard output


def form_of(path: str | None) -> str:
    """What is to be written into a file, by its ending."""
    ending = os.path.splitext(path or "")[1].lower().removeprefix(".")
    return ending if ending in ("html", "json", "sarif") else "text"


def tell(options: argparse.Namespace, result: Result, failed: str = "", text: str = "") -> int:
    """Print a result, and write the files that were asked for: what every command but `audit` ends with.

    `failed` says why it does not pass, which is raised; `text` is printed, if that is not the result alone.
    """
    form = "json" if options.json == STDOUT else form_of(options.output)
    shown = result.to_json() if form == "json" else result.to_html() if form == "html" else text or str(result)
    to_file = options.output not in (None, STDOUT)
    if not to_file and (failed or not options.quiet or options.json == STDOUT):
        print(shown, file=options.out)
    try:
        if to_file:
            write(options.output, shown.rstrip("\n") + "\n")
        if options.json not in (None, STDOUT):
            result.to_json(options.json)
        if options.html is not None:
            result.to_html(options.html)
    except OSError as error:
        raise Failed(str(error)) from error
    if failed:
        raise Failed(failed)
    return 0


def try_files(options: argparse.Namespace, *more: str) -> None:
    """Make the paths in options absolute, as the program may change its folder, if each can be written."""
    taken: dict[str, str] = {}
    for name in ("json", "html", "output", *more):
        path, option = getattr(options, name), f"--{name.replace('_', '-')}"
        if path == STDOUT and name not in _STREAMS:
            raise Usage(f"--{name} takes the path of a file, not -")
        if path is None or path == STDOUT:
            continue
        try:
            file = writable(path)
        except ValueError as error:
            raise Usage(str(error)) from error
        first = taken.setdefault(os.path.realpath(file), option)
        if first != option and os.path.realpath(file) != os.devnull:
            raise Usage(f"cannot write {path}: {first} and {option} name the same file")
        setattr(options, name, file)
