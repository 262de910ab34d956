"""What a tool's own runs would say is said to nobody, in this thread: warnings and the log are the whole process's."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

from .filters import Filter
from .log import logger

_quiet: ContextVar[bool] = ContextVar("dtypeguard.quiet", default=False)
_heard: ContextVar[list[Warning] | None] = ContextVar("dtypeguard.heard", default=None)


class _Asks:
    """Stands in a filter of warnings for the regular expression of its text: it matches in a quiet thread."""

    pattern = "(?!)"  # for those who hand filters on to other processes: there it matches nothing

    def match(self, text: str) -> bool:
        return _quiet.get()


_filter = Filter("ignore", text=_Asks())

logger.addFilter(lambda record: not _quiet.get())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """In here no warning is shown and dtypeguard logs nothing, in this thread; those of other threads are as ever."""
    if getattr(sys.flags, "context_aware_warnings", False):  # Python 3.14: filters may be one thread's
        with warnings.catch_warnings(action="ignore"), _quiet_here():
            yield
        return
    with _quiet_here():
        who = object()
        try:
            _filter.begin(who)
            yield
        finally:
            _filter.end(who)


@contextlib.contextmanager
def _quiet_here() -> Iterator[None]:
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


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
