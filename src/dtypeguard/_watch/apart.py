"""What the audit looks at itself is nobody else's business: not that of modes which the program has on around it."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
from torch.utils._python_dispatch import _disable_current_modes

_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_NOTHING = contextlib.nullcontext()


def apart(own: int = 0) -> AbstractContextManager[None]:
    """Switch other modes off, if there are any; `own` is how many of those on the stack are the audit's."""
    return _without_modes() if _function_modes() or _dispatch_modes() > own else _NOTHING


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield
