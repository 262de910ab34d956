"""What Dynamo makes of the audit's own functions."""

from types import CodeType
from typing import Any

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


def seen_through(function: Any, original: Any) -> None:
    """Where Dynamo meets the function in what it traces, it traces the original."""
    function._torchdynamo_inline = original  # what torch.compile sets on what it returns
