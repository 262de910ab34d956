"""DG202: functions of one's own under autocast. What else autocast leads to is known from what PyTorch refuses."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import Function

from .._dtypes import name_of
from ._events import Op, on
from ._recorder import Recorder
from ._sites import Site


@dataclass
class Applied:
    """Where functions without `custom_fwd` were called under autocast, last."""

    sites: dict[type, tuple[Site, str | None]] = field(default_factory=dict)


@on("start", "DG202")
def replace(audit: Recorder) -> None:
    audit.patches.replace(Function, "apply", functools.partial(_apply, audit))


def _apply(audit: Recorder, original: Any) -> Any:
    inner: Callable[..., Any] = original.__func__

    @functools.wraps(inner)
    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        if audit.live and audit.autocast() and not _decorated(cls):
            audit.guarded(_remember, audit, cls)
        return inner(cls, *args, **kwargs)

    return classmethod(apply)


def _remember(audit: Recorder, cls: type) -> None:
    audit.state(Applied).sites[cls] = (audit.here(), audit.module())


def _decorated(cls: type[Function]) -> bool:
    code = getattr(cls.forward, "__code__", None)
    return code is None or code.co_filename == torch.amp.autocast_mode.__file__


@on("backward", "DG202")
def mixed_in_backward(event: Op, audit: Recorder) -> None:
    """Its backward mixes what it saved with the gradient that it got."""
    running: Any = torch._C._current_autograd_node()
    cls = getattr(running, "_forward_cls", None)
    known = audit.state(Applied).sites.get(cls) if cls is not None else None
    if cls is None or known is None:
        return
    dtypes = sorted({name_of(t.dtype) for t in event.inputs if t.dtype.is_floating_point})
    if len(dtypes) > 1:
        detail = f"its backward mixes {' and '.join(dtypes)} at {event.site}"
        enter(audit, cls, known, detail)


def enter(audit: Recorder, cls: type, known: tuple[Site, str | None], detail: str) -> None:
    facts = {"name": cls.__name__, "detail": detail, "device": "cpu"}
    audit.find("DG202", known[0], module=known[1], op=f"{cls.__name__}.apply", facts=facts)
