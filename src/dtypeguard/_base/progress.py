"""A line on the terminal for what takes longer than somebody who waits expects."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
_PATIENCE = 3.0  # seconds
_ERASE = "\r\x1b[K"


def progress(what: str, parts: Sequence[T]) -> Iterator[T]:
    """The parts, in turn. After three seconds a line on standard error, if that is a terminal, tells how far it is."""
    began, shown = time.monotonic(), False
    try:
        for number, part in enumerate(parts):
            took = time.monotonic() - began
            if took > _PATIENCE and sys.stderr is not None and sys.stderr.isatty():
                text = f"dtypeguard: {what}: {number} of {len(parts)} cells in {took:.0f} s"
                print(f"{_ERASE}{text}", end="", file=sys.stderr, flush=True)
                shown = True
            yield part
    finally:
        if shown:
            print(_ERASE, end="", file=sys.stderr, flush=True)
