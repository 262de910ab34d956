"""What Dynamo makes of the audit's own functions."""

from types import CodeType
from typing import Any

from . import private


def unseen(function: Any, inside: bool = False) -> None:
    """Dynamo leaves this function's own frame alone; with `inside` all that it calls, too."""
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    frames = private.eval_frame
    if not isinstance(code, CodeType) or frames is None:
        return
    action = frames._FrameAction
    strategy = frames._FrameExecStrategy(action.SKIP, action.SKIP if inside else action.DEFAULT)
    frames.set_code_exec_strategy(code, strategy)


def seen_through(function: Any, original: Any) -> None:
    """Where Dynamo meets the function in what it traces, it traces the original."""
    function._torchdynamo_inline = original  # what torch.compile sets on what it returns
