"""What a tool's own runs would say is said to nobody, in this thread: warnings and the log are the whole process's."""

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from .log import logger

_quiet: ContextVar[bool] = ContextVar("dtypeguard.quiet", default=False)
_heard: ContextVar[list[Warning] | None] = ContextVar("dtypeguard.heard", default=None)
_lock = threading.Lock()
_running = 0


class _Asks:
    """Stands in a filter of warnings for the regular expression of its text: it matches in a quiet thread."""

    def match(self, text: str) -> bool:
        return _quiet.get()


_FILTER: Any = ("ignore", _Asks(), Warning, None, 0)

logger.addFilter(lambda record: not _quiet.get())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """In here no warning is shown and dtypeguard logs nothing, in this thread; those of other threads are as ever."""
    if getattr(sys.flags, "context_aware_warnings", False):  # Python 3.14: filters may be one thread's
        with warnings.catch_warnings(action="ignore"), _quiet_here():
            yield
        return
    with _quiet_here():
        _begin()
        try:
            yield
        finally:
            _end()


@contextlib.contextmanager
def _quiet_here() -> Iterator[None]:
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def _begin() -> None:
    """Set the filter; what was warned of once is not forgotten, as it would be after a change by `warnings` itself."""
    global _running
    filters: Any = warnings.filters
    with _lock:
        _running += 1
        if filters[:1] != [_FILTER]:
            filters.insert(0, _FILTER)


def _end() -> None:
    global _running
    filters: Any = warnings.filters
    with _lock:
        _running -= 1
        if not _running:
            filters[:] = [one for one in filters if one is not _FILTER]


@contextlib.contextmanager
def hearing() -> Iterator[list[Warning]]:
    """The warnings that dtypeguard itself gives in here, in this thread; they are not shown."""
    said: list[Warning] = []
    token = _heard.set(said)
    try:
        yield said
    finally:
        _heard.reset(token)


def hears(warning: Warning) -> bool:
    """Whether somebody in this thread keeps what dtypeguard says."""
    said = _heard.get()
    if said is not None:
        said.append(warning)
    return said is not None
