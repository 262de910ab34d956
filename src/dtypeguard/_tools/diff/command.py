"""`python -m dtypeguard diff`: where two programs part, or a capture of one."""

import argparse
import contextlib
import re
from collections.abc import Iterator
from typing import Any

from ..._core.base.errors import CompareError
from ..._core.base.usage import Raised, Usage
from ..factory import Takes, batch_by, both_by, found_by, no_batch, refusing
from ..output import tell, try_files
from .diff import capture, diff

_PROGRAMS = Takes("an nn.Module or a function", callable)


def run(options: argparse.Namespace) -> int:
    """Print where they part, or write a capture."""
    try_files(options, "capture")
    given = [*options.programs, *filter(None, [options.against])]
    wanted = 1 if options.capture else 2
    if len(given) != wanted:
        raise Usage(
            "diff compares two programs: name two, or one and --against PATH"
            if wanted == 2
            else "--capture writes what one program does: name one"
        )
    if options.capture and (options.json or options.html or options.output or options.loss):
        raise Usage("--capture compares nothing: leave out --json, --html, --output and --loss")
    if options.against:
        with refusing(OSError), open(options.against, "rb"):
            pass  # what is not there is told before a batch is asked for
    batch = batch_by(options.batch)
    made = [both_by(name, None, _PROGRAMS, paths=True) for name in options.programs]
    programs = [program for program, _ in made]
    batch = next((own for own in (batch, *(own for _, own in made)) if own is not None), None)
    if batch is None:
        raise no_batch(options.programs[0])
    sides = [*zip(options.programs, programs, strict=True)]
    if options.against:
        sides.insert(0, (options.against, options.against))
    with _as_typed(sides), refusing(CompareError, OSError):
        if options.capture:
            capture(programs[0], batch, options.capture)
            return 0
        (_, a), (_, b) = sides
        loss = None if options.loss is None else found_by(options.loss)
        found = diff(a, b, batch, loss=loss)
    return tell(options, found, found.verdict if found.verdict == "another function" else "")


@contextlib.contextmanager
def _as_typed(sides: list[tuple[str, Any]]) -> Iterator[None]:
    """What `diff` says of a and b is said of what stands on the command line: `a, this Net, ` is `net:make `."""
    try:
        yield
    except (Raised, Usage) as error:
        text = str(error)
        for side, (typed, program) in zip("ab", sides, strict=False):
            title = program if program is typed else getattr(program, "__name__", type(program).__name__)
            for told in (f"{side}, {title}, ", f"{side}, this {title}, "):
                text = re.sub(rf"\b{re.escape(told)}", lambda _, typed=typed: f"{typed} ", text)  # type: ignore[misc]
        raise type(error)(text) from error.__cause__
