"""A line for what takes longer than somebody who waits expects: on a terminal, below a notebook's cell, or in a log."""

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
_PATIENCE = 2.0  # seconds until something is shown
_AGAIN, _NEXT = 0.2, 10.0  # and until it is shown anew in its place, or as another line
_LOGGED = 30.0  # the same where standard error is a file
_ERASE = "\r\x1b[K"


class _Line:
    """How far one task is. It is shown by `tell`, so nothing runs beside the task."""

    def __init__(self, what: str, alone: bool) -> None:
        self._what, self._alone = what, alone
        self._began = time.monotonic()
        self._log = alone and not _kernel() and not _is_terminal(sys.stderr)
        self._due = self._began + (_LOGGED if self._log else _PATIENCE if alone or _kernel() else _NEXT)
        self._handle: Any = None  # of the output below a cell
        self._shown = False

    def tell(self, say: Callable[[], str]) -> None:
        now = time.monotonic()
        if now <= self._due:
            return
        text, took = f"dtypeguard: {self._what}: {say()}", now - self._began
        self._due = now + (_LOGGED if self._log else _AGAIN if self._alone or self._handle else _NEXT)
        self._show(f"{text} in {took:.0f} s")

    def _show(self, text: str) -> None:
        stream = sys.stderr if self._alone else sys.__stderr__  # which an audited program may replace
        if _kernel():
            self._below(text)
        elif stream is not None and self._alone and not self._log:
            print(f"{_ERASE}{text}", end="", file=stream, flush=True)
            self._shown = True
        elif stream is not None and (self._log or _is_terminal(stream)):  # lines of the program's own come between
            print(text, file=stream, flush=True)

    def _below(self, text: str) -> None:
        """The same output of the cell again and again."""
        show: Any = sys.modules["IPython"].display.display
        data = {"text/plain": text}
        if self._handle is None:
            self._handle = show(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def erase(self) -> None:
        if self._handle is not None:
            self._below("")
        elif self._shown:
            print(_ERASE, end="", file=sys.stderr, flush=True)


_line: _Line | None = None  # of the outermost task: what it calls tells how far it is, too


def _is_terminal(stream: Any) -> bool:
    return stream is not None and bool(stream.isatty())


def _kernel() -> bool:
    """Whether a notebook's kernel runs the program."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(getattr(ipython, "get_ipython", lambda: None)(), "kernel")


@contextlib.contextmanager
def task(what: str, alone: bool = True) -> Iterator[None]:
    """A task that takes a while. After two seconds `tell` shows how far it is.

    Args:
        what: its name.
        alone: whether nothing else writes meanwhile, so that the line can stand still. Otherwise it comes every ten
            seconds. Where standard error is no terminal, what is alone tells it every thirty seconds.
    """
    global _line
    if _line is not None:
        yield
        return
    _line = line = _Line(what, alone)
    try:
        yield
    finally:
        _line = None
        line.erase()


def tell(say: Callable[[], str]) -> None:
    """Show how far the task that is running is, if that is due; `say` is only called then."""
    if _line is not None:
        _line.tell(say)


def progress(what: str, parts: Sequence[T]) -> Iterator[T]:
    """The parts, in turn, as a task."""
    with task(what):
        for number, part in enumerate(parts):
            tell(functools.partial("{} of {} cells".format, number, len(parts)))
            yield part
