"""torch.compile in an audit: compiled functions run as written, and Dynamo does not look at the audit itself."""

import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

_frames: Any = torch._C._dynamo.eval_frame


def unseen(function: Any, inside: bool = False) -> None:
    """Dynamo leaves this function's own frame alone; with `inside` all that it calls, too."""
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return
    if hasattr(_frames, "set_code_exec_strategy"):
        action = _frames._FrameAction
        strategy = _frames._FrameExecStrategy(action.SKIP, action.SKIP if inside else action.DEFAULT)
        _frames.set_code_exec_strategy(code, strategy)
    elif hasattr(_frames, "skip_code"):  # before torch 2.7
        _frames.skip_code(code)


class Eager:
    """The stance of torch.compile, for the time of an audit.

    Where an unknown dispatch mode is active, torch compiles nothing, but refuses `fullgraph=True`. To set the stance
    imports Dynamo, so that is left until the program does.
    """

    def __init__(self) -> None:
        self._stance: Any = None

    def needed(self) -> None:
        """The program has Dynamo, or is about to."""
        if self._stance is None and "torch._dynamo" in sys.modules:
            self._stance = torch.compiler.set_stance("force_eager")
            self._stance.__enter__()

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.compile`."""

        @functools.wraps(original)
        def compiles(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self.needed()
            return result

        return compiles

    def over(self) -> None:
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None
