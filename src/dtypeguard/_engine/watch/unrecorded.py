"""Functions of dtypeguard that run models by themselves, which is no work of an audited program."""

import contextlib
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from .recorder import listening

P = ParamSpec("P")
T = TypeVar("T")


def unrecorded(function: Callable[P, T]) -> Callable[P, T]:
    """What the function does is not recorded by audits that run around it: its models are lowered on purpose."""

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        with contextlib.ExitStack() as stack:
            for audit in listening():
                stack.enter_context(audit.aside())
            return function(*args, **kwargs)

    return alone
