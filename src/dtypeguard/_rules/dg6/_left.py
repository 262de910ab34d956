"""Functions that change a setting and set it back: whether an exception left one of them in between.

Python tells nobody how a function was left, but where its frame stopped: at a `return`, or where something was raised.
"""

import contextlib
import dis
import inspect
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, GeneratorType
from typing import Any

import torch

_SETS = ("set_default_dtype", "set_default_tensor_type")
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_ENDS = ("RETURN_", "RAISE_", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD")  # what follows is not what comes next


def stack(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


@dataclass(eq=False)
class Held:
    """A function that was running when the setting was changed. What is in its frame lives as long as this."""

    frame: FrameType
    start: int  # the instruction
    generator: "weakref.ref[GeneratorType[Any, Any, Any]] | None"

    @property
    def over(self) -> bool:
        """Whether it will not go on; that it is not on the stack is known."""
        if not self.frame.f_code.co_flags & _SUSPENDS:
            return True
        if self.generator is None:
            return False  # nobody knows
        generator = self.generator()
        return generator is None or generator.gi_frame is None

    @property
    def raised(self) -> bool:
        return not dis.opname[self.frame.f_code.co_code[self.frame.f_lasti]].startswith("RETURN_")

    def sets(self, dtype: torch.dtype) -> bool:
        """Whether it can come, from where it was, to a call that makes this the default dtype."""
        steps = list(dis.get_instructions(self.frame.f_code))
        reached = self._reached(steps)
        return any(
            step.argval in _SETS and step.offset in reached and self._argument(steps[number + 1 :]) is dtype
            for number, step in enumerate(steps)
        )

    def _reached(self, steps: list[dis.Instruction]) -> set[int]:
        """The instructions that may run after the one where it was."""
        after = {step.offset: (step, following) for step, following in zip(steps, [*steps[1:], None], strict=True)}
        handlers: Any = getattr(dis.Bytecode(self.frame.f_code), "exception_entries", ())
        first = max(offset for offset in after if offset <= self.start)  # in a call it stands behind the instruction
        todo, seen = [first], set[int]()
        while todo:
            offset = todo.pop()
            if offset in seen or offset not in after:
                continue
            seen.add(offset)
            step, following = after[offset]
            if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
                todo.append(step.argval)
            if following is not None and not step.opname.startswith(_ENDS):
                todo.append(following.offset)
            todo += [handler.target for handler in handlers if handler.start <= offset < handler.end]
        return seen

    def _argument(self, steps: list[dis.Instruction]) -> Any:
        """What a call is given: a variable or an attribute, as it is now; a tensor type stands for its dtype."""
        value: Any = None
        names = {**self.frame.f_globals, **self.frame.f_locals}
        for step in steps:
            if step.opname.startswith(("PRECALL", "CALL")):
                break
            if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                value = inspect.getattr_static(value, step.argval, None)
            elif step.opname.startswith("LOAD_"):
                value = names.get(step.argval) if isinstance(step.argval, str) else None
        return value if isinstance(value, torch.dtype) else getattr(value, "dtype", None)


def setters(frame: FrameType) -> list[Held]:
    """The functions on the stack that name what sets the default dtype, the innermost first."""
    named = [one for one in stack(frame) if any(name in one.f_code.co_names for name in _SETS)]
    return [Held(one, one.f_lasti, _generator(one)) for one in named]


def _generator(frame: FrameType) -> "weakref.ref[GeneratorType[Any, Any, Any]] | None":
    """That of a context manager: it alone knows whether it is over."""
    if frame.f_code.co_flags & inspect.CO_GENERATOR and frame.f_back is not None:
        with contextlib.suppress(AttributeError):
            generator = frame.f_back.f_locals["self"].gen if "self" in frame.f_back.f_locals else None
            if isinstance(generator, GeneratorType) and generator.gi_frame is frame:
                return weakref.ref(generator)
    return None
