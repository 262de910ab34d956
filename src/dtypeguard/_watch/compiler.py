"""torch.compile in an audit: compiled functions run as written, and Dynamo does not look at the audit itself."""

import sys
from types import CodeType
from typing import Any, ClassVar

import torch

_C: Any = torch._C  # which torch leaves untyped
_frames: Any = _C._dynamo.eval_frame


def unseen(function: Any, inside: bool = False) -> None:
    """Dynamo leaves this function's own frame alone; with `inside` all that it calls, too."""
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return
    action = _frames._FrameAction
    strategy = _frames._FrameExecStrategy(action.SKIP, action.SKIP if inside else action.DEFAULT)
    _frames.set_code_exec_strategy(code, strategy)


class Eager:
    """The stance of torch.compile, for the time of an audit.

    Where an unknown dispatch mode is active, torch compiles nothing, but refuses `fullgraph=True`. To set the stance
    imports Dynamo, so that is left until the program does.
    """

    _using: ClassVar[list["Eager"]] = []  # audits may end in another order than they began
    _stance: ClassVar[Any] = None

    def needed(self) -> None:
        """The program has Dynamo, or is about to."""
        if "torch._dynamo" in sys.modules and self not in self._using:
            if not self._using:
                Eager._stance = torch.compiler.set_stance("force_eager")
                Eager._stance.__enter__()
            self._using.append(self)

    def over(self) -> None:
        if self in self._using:
            self._using.remove(self)
            if not self._using:
                Eager._stance.__exit__(None, None, None)
