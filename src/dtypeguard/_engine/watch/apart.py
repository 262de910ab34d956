"""What the audit looks at itself is nobody else's business: not that of modes which the program has on around it."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..._core.base import private

_dispatch_modes, _function_modes = private.dispatch_modes, private.function_modes
_NOTHING = contextlib.nullcontext()


def apart(own: int = 0) -> AbstractContextManager[None]:
    """Switch other modes off, if there are any; `own` is how many of those on the stack are the audit's."""
    modes = _function_modes() or _dispatch_modes() > own
    if torch.is_inference_mode_enabled():
        return _OutsideInference(_without_modes() if modes else _NOTHING)
    return _without_modes() if modes else _NOTHING


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    with private.without_modes(), private.no_functions():
        yield


class _OutsideInference:
    """What is made here may be kept, and written to after the program has left its inference mode."""

    __slots__ = ("_mode", "_modes")

    def __init__(self, modes: AbstractContextManager[None]) -> None:
        self._modes, self._mode = modes, torch.inference_mode(False)

    def __enter__(self) -> None:
        self._modes.__enter__()
        self._mode.__enter__()
        torch.set_grad_enabled(False)  # which its end puts back too

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)
        self._modes.__exit__(*error)
