"""The base of all dispatch modes."""

import contextlib
from collections.abc import Iterator
from typing import Self

from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from . import private


class Mode(TorchDispatchMode):
    """A dispatch mode of one thread, which Dynamo looks through."""

    supports_higher_order_operators = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it would import all of Dynamo, and costs 3 us at each operation

    @contextlib.contextmanager
    def on(self) -> Iterator[Self]:
        """The mode is on in here. Its own `with` sets flags of the process, by which Dynamo compiles nothing."""
        depth = private.dispatch_modes()
        try:
            _python_dispatch._push_mode(self)
            yield self
        finally:
            while private.dispatch_modes() > depth:  # Ctrl-C may come before it is on
                _python_dispatch._pop_mode()
