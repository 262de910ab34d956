"""DG202 function-without-custom-fwd."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.function import Function

from ..._core.base import private
from ..._engine.watch.events import Refusal
from .._kit import Op, Recorder, Rule, Severity, Site, around, name_of, on
from .._refusals import Refused, Turn, explains

RULE = Rule(
    "DG202",
    "function-without-custom-fwd",
    Severity.ERROR,
    summary="An autograd function runs under autocast without `custom_fwd`.",
    says="autograd.Function `{name}` ran under autocast without `custom_fwd`; {detail}",
    fix=(
        "decorate it: `@torch.amp.custom_fwd(device_type={device!r}, cast_inputs=torch.float32)` on "
        "forward, `@torch.amp.custom_bwd(device_type={device!r})` on backward"
    ),
    why=(
        "Autocast casts inside the forward of a Function, but backward runs outside of any region, on "
        "saved tensors of the dtypes that came in and a gradient of the dtype that went out."
    ),
    safe=("custom_fwd",),
    sources=(
        "https://github.com/pytorch/pytorch/issues/47906",
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#functions-with-multiple-inputs-or-autocastable-ops",
    ),
)


@dataclass
class Applied:
    """Where functions without `custom_fwd` were called under autocast, last, and it cast in them."""

    calls: dict[type, tuple[Site, str | None, str]] = field(default_factory=dict)  # with the type of device
    casts: int = 0  # of autocast


@on("cast", RULE)
def count(event: Op, audit: Recorder) -> None:
    audit.state(Applied).casts += event.kind == "autocast"


@around(Function, "apply", rule=RULE)
def _apply(audit: Recorder, original: Callable[..., Any], cls: type[Function], /, *args: Any, **kwargs: Any) -> Any:
    if not audit.autocast() or _is_safe(cls):
        return original(cls, *args, **kwargs)
    applied = audit.state(Applied)
    before = applied.casts
    result = original(cls, *args, **kwargs)
    if applied.casts > before:
        audit.guarded(_remember, audit, applied, cls)
    return result


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


@on("backward", RULE)
def mixed_in_backward(event: Op, audit: Recorder) -> None:
    """Its backward mixes what it saved with the gradient that it got; not where it runs forward again."""
    running: Any = private.current_node()
    cls = getattr(running, "_forward_cls", None)
    if cls is None or event.autocast or event.module is not None:
        return
    dtypes = sorted({name_of(t.dtype) for t in event.inputs if t.dtype.is_floating_point and t.ndim})
    if len(dtypes) > 1:
        _enter(audit, cls, f"its backward mixes {' and '.join(dtypes)} at {event.site}")


@explains(Turn.FUNCTION)
def failed_in_backward(it: Refused) -> bool:
    function, event = it.event.function, it.event
    return function is not None and _enter(
        it.audit, function, f"its backward failed at {event.site}: {event.reason}", event
    )


def _enter(audit: Recorder, cls: type, detail: str, event: Refusal | None = None) -> bool:
    """A fault of a function that ran under autocast; False if it did not. What only mixes may be right."""
    known = audit.state(Applied).calls.get(cls)
    if known is None:
        return False
    site, module, device = known
    facts = {"name": cls.__name__, "detail": detail, "device": device}
    fields: dict[str, Any] = {"module": module, "op": f"{cls.__name__}.apply", "facts": facts}
    if event is None:
        audit.find(RULE, site, severity=Severity.INFO, **fields)
    else:
        audit.enter_refusal(event, RULE.id, site, [], **fields)
    return True
