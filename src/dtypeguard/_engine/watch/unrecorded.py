"""Functions of dtypeguard that run models by themselves, which is no work of an audited program."""

import contextlib
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ..._core.base.patches import here as threads
from .patches import Patches
from .recorder import Recorder

P = ParamSpec("P")
T = TypeVar("T")


def unrecorded(function: Callable[P, T]) -> Callable[P, T]:
    """What the function does is not recorded by audits that run around it: its models are lowered on purpose."""

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        with contextlib.ExitStack() as stack:
            for audit in _listening_audits():
                stack.enter_context(audit.without_audit())
            return function(*args, **kwargs)

    return alone


def _listening_audits() -> list[Recorder]:
    """The audits that take part in this thread, the innermost first."""
    audits = [one.audit for one in reversed(threads.listeners) if isinstance(one, Patches)]
    return [audit for audit in audits if audit.records_here]
