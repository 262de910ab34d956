"""What the audit looks at itself is nobody else's business: not that of modes which the program has on around it."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

from ..._core.base import private

_dispatch_modes, _function_modes = private.dispatch_modes, private.function_modes
_NOTHING = contextlib.nullcontext()


def apart(own: int = 0) -> AbstractContextManager[None]:
    """Switch other modes off, if there are any; `own` is how many of those on the stack are the audit's."""
    return _without_modes() if _function_modes() or _dispatch_modes() > own else _NOTHING


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    with private.without_modes(), private.no_functions():
        yield
