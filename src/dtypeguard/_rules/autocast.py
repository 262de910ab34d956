"""DG202: functions of one's own under autocast. What else autocast leads to is known from what PyTorch refuses."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import Function

from .._base.dtypes import name_of
from .._watch.events import Op, Refusal, on
from .._watch.recorder import Recorder
from .._watch.rule import Severity
from .._watch.sites import Site


@dataclass
class Applied:
    """Where functions without `custom_fwd` were called under autocast, last, and it cast in them."""

    calls: dict[type, tuple[Site, str | None, str]] = field(default_factory=dict)  # with the type of device
    casts: int = 0  # of autocast


@on("start", "DG202")
def replace(audit: Recorder) -> None:
    audit.patches.replace(Function, "apply", functools.partial(_apply, audit))


@on("cast", "DG202")
def count(event: Op, audit: Recorder) -> None:
    audit.state(Applied).casts += event.kind == "autocast"


def _apply(audit: Recorder, original: Any) -> Any:
    inner: Callable[..., Any] = original.__func__

    @functools.wraps(inner)
    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        if not audit.live or audit.local.paused or not audit.autocast() or _is_safe(cls):
            return inner(cls, *args, **kwargs)
        applied = audit.state(Applied)
        before = applied.casts
        result = inner(cls, *args, **kwargs)
        if applied.casts > before:
            audit.guarded(_remember, audit, applied, cls)
        return result

    return classmethod(apply)


def _remember(audit: Recorder, applied: Applied, cls: type) -> None:
    applied.calls[cls] = (audit.here(), audit.module(), audit.region()[0])


def _is_safe(cls: type[Function]) -> bool:
    """Whether it knows of autocast: `custom_fwd`, perhaps below other decorators; torch's own do."""
    if cls.__module__.partition(".")[0] == "torch":
        return True
    function: Any = cls.forward
    while function is not None:
        code = getattr(function, "__code__", None)
        if code is not None and code.co_filename == torch.amp.autocast_mode.__file__:
            return True
        function = getattr(function, "__wrapped__", None)
    return False


@on("backward", "DG202")
def mixed_in_backward(event: Op, audit: Recorder) -> None:
    """Its backward mixes what it saved with the gradient that it got; not where it runs forward again."""
    running: Any = torch._C._current_autograd_node()
    cls = getattr(running, "_forward_cls", None)
    if cls is None or event.autocast or event.module is not None:
        return
    dtypes = sorted({name_of(t.dtype) for t in event.inputs if t.dtype.is_floating_point and t.ndim})
    if len(dtypes) > 1:
        enter(audit, cls, f"its backward mixes {' and '.join(dtypes)} at {event.site}")


def enter(audit: Recorder, cls: type, detail: str, event: Refusal | None = None) -> bool:
    """A fault of a function that ran under autocast; False if it did not. What only mixes may be right."""
    known = audit.state(Applied).calls.get(cls)
    if known is None:
        return False
    site, module, device = known
    facts = {"name": cls.__name__, "detail": detail, "device": device}
    fields: dict[str, Any] = {"module": module, "op": f"{cls.__name__}.apply", "facts": facts}
    if event is None:
        audit.find("DG202", site, severity=Severity.INFO, **fields)
    else:
        audit.refuse(event, "DG202", site, [], **fields)
    return True
