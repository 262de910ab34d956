"""`python -m dtypeguard diff`: where two programs part, or a capture of one."""

import argparse
import os

from ..._core.base.errors import CompareError
from ..._core.base.options import unread
from ..._core.base.usage import Failed, Usage
from ..audit.command import try_files, write_files
from ..audit.factory import found_by, made_by, path_or_made
from .diff import capture, diff


def run(options: argparse.Namespace) -> int:
    """Print where they part, or write a capture.

    Raises:
        Failed: one of the two is another function.
        Usage: what is wrong with the options, or cannot be compared.
    """
    try_files(options, "capture", "json", "html")
    given = [*options.programs, *filter(None, [options.against])]
    wanted = 1 if options.capture else 2
    if len(given) != wanted:
        raise Usage(
            "diff compares two programs: name two, or one and --against PATH"
            if wanted == 2
            else "--capture writes what one program does: name one"
        )
    if options.capture and (options.json or options.html or options.loss):
        raise Usage("--capture compares nothing: leave out --json, --html and --loss")
    batch = made_by(options.batch)
    programs = [path_or_made(name) for name in options.programs]
    for name in programs:
        if isinstance(name, str) and not os.path.exists(name):
            raise Usage(f"{name} is no file; what makes a model is named package.module:function")
    try:
        if options.capture:
            capture(programs[0], batch, options.capture)
            return 0
        a, b = (options.against, *programs) if options.against else programs
        loss = None if options.loss is None else found_by(options.loss)
        found = diff(a, b, batch, loss=loss)
    except (CompareError, TypeError, ValueError, OSError) as error:
        raise Usage(unread(error)) from error
    print(found)
    write_files(options, found)
    if found.verdict == "another function":
        raise Failed(found.verdict)
    return 0
