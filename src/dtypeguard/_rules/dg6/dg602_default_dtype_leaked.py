"""DG602 default-dtype-leaked."""

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..._engine.watch.lineage import Cause
from .._kit import Node, Op, Recorder, Rule, Severity, Site, around, name_of, on
from ._left import Held, setters, stack

_FACTORIES = "arange empty eye full linspace logspace normal ones rand randn zeros".split()

RULE = Rule(
    "DG602",
    "default-dtype-leaked",
    Severity.ERROR,
    summary="The default dtype is changed and not restored.",
    says="the default dtype is {dtype} since this line ({was} before), and {effect}",
    fix=("set it back (`try: ... finally: torch.set_default_dtype(torch.{was})`), or give `dtype=` to the factories"),
    why=(
        "`torch.set_default_dtype` holds for the whole process. A library that sets it changes what "
        "`linspace`, `zeros` and every new layer give in all programs that use it."
    ),
    asks=("DG101", "DG102"),
    safe=("default_in_finally",),
    unsafe=("default_given_back",),
    sources=(
        "https://github.com/ACEsuit/mace/issues/328",
        "https://github.com/huggingface/transformers/issues/28461",
        "https://docs.pytorch.org/docs/stable/generated/torch.set_default_dtype.html",
    ),
)


@dataclass(eq=False)
class Leak(Cause):
    """The default dtype was changed here."""

    site: Site
    was: torch.dtype
    dtype: torch.dtype
    said: bool = False
    held: list[Held] = field(default_factory=list)  # functions that were running and can set it back
    meant: list[Held] = field(default_factory=list)  # in which it was set to the same once more
    thread: int = field(default_factory=threading.get_ident)
    below: "Leak | None" = None  # the change that this one takes back, for as long as a function runs

    def blame(self, audit: Recorder, effect: str) -> None:
        if self.below is None and (self.met or self in audit.births.values()):  # a loader that sets it back is no leak
            self.tell(audit, f"what is made from it met other dtypes: {effect}")

    def tell(self, audit: Recorder, effect: str) -> None:
        if not self.said:
            self.said = True
            facts = {"dtype": name_of(self.dtype), "was": name_of(self.was), "effect": effect}
            audit.find(
                RULE, self.site, op="torch.set_default_dtype", facts=facts, from_dtype=self.was, to_dtype=self.dtype
            )

    def failed(self) -> Held | None:
        """The function that would have set it back, and was left by an exception."""
        if self.said or not self.held or self.thread != threading.get_ident():
            return None
        running = {id(frame) for frame in stack(sys._getframe(1))}
        if any(id(one.frame) in running for one in self.meant):
            return None
        self.meant = []
        for one in [one for one in self.held if id(one.frame) not in running and one.over]:
            if one.raised and one.sets(self.was):
                return one
            self.held.remove(one)
        return None

    def release(self) -> None:
        """Frames hold what was in them, and tensors that were made meanwhile hold this."""
        self.held, self.meant = [], []
        if self.below is not None:
            self.below.release()


@on("after", RULE, ops=_FACTORIES)
def born(event: Op, audit: Recorder) -> None:
    """Something has the default dtype: whether an exception is why."""
    leak = audit.births.get(event.out.dtype) if audit.births and isinstance(event.out, Tensor) else None
    if isinstance(leak, Leak) and not event.inputs and event.kwargs.get("dtype") is None:
        one = leak.failed()
        if one is not None:
            made = f"`{event.what}` at {event.site} is {name_of(leak.dtype)}"
            leak.tell(audit, f"an exception left `{one.frame.f_code.co_name}` before it was set back: {made}")
            leak.release()


@on("end", RULE)
def forget(audit: Recorder) -> None:
    for leak in audit.births.values():
        if isinstance(leak, Leak):
            leak.release()


@around(nn.Module, "register_parameter", rule=RULE)
def _registration(audit: Recorder, original: Callable[..., Any], self: nn.Module, name: str, param: Any) -> None:
    """Parameters are made past the dispatcher."""
    original(self, name, param)
    cause = audit.births.get(param.dtype) if audit.births and isinstance(param, Tensor) else None
    if cause is not None:
        title = f"parameter {type(self).__name__}.{name}"
        node = audit.guarded(lambda: Node(title, audit.here(), param.dtype, cause=cause, named=True))
        audit.guarded(audit.lineage.hold, self, name, param, node)


@around(torch, "set_default_dtype", "set_default_tensor_type", rule=RULE)
def _default(audit: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    was = torch.get_default_dtype()
    result = original(*args, **kwargs)
    dtype = torch.get_default_dtype()
    if dtype is not was:
        frames = audit.guarded(setters, sys._getframe(1)) or []
        before = next((cause for cause in audit.births.values() if isinstance(cause, Leak)), None)
        below = None
        if before is not None:
            del audit.births[before.dtype]
            if dtype is before.was:
                within = frames and all(one.frame is not frames[0].frame for one in before.held)
                if before.below is not None or not within:  # it is set back
                    if before.below is not None:
                        audit.births[dtype], before.below = before.below, None
                    before.release()
                    return result
                below = before
            else:
                was = (before.below or before).was
                before.release()
        audit.births[dtype] = Leak(audit.here(), was, dtype, held=frames, below=below)
        return result
    again = audit.births.get(dtype)
    if isinstance(again, Leak):
        known, frames = [one.frame for one in again.held], audit.guarded(setters, sys._getframe(1)) or []
        again.meant = [one for number, one in enumerate(frames) if not number or one.frame not in known]
    return result
