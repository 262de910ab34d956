"""A GradScaler that tells its watches what is done with it.

Floor 5. The scaler's class is swapped for a generated subclass, so nothing is added to the instance: it pickles, copies
and saves its state as before.
"""

import copyreg
import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer


class Listener(Protocol):
    """What a watch hears."""

    def scaling(self, outputs: Any, scaled: Callable[[], Any]) -> Any: ...
    def unscaling(self, optimizer: Optimizer, stage: OptState) -> None: ...
    def stepping(self, optimizer: Optimizer, stage: OptState, step: Callable[[], Any]) -> Any: ...
    def updated(self) -> None: ...
    def asked(self) -> None: ...


_listeners: weakref.WeakKeyDictionary[GradScaler, list[Listener]] = weakref.WeakKeyDictionary()


def scale_of(scaler: GradScaler) -> float:
    """The scale now; the watches do not hear of it."""
    return GradScaler.get_scale(scaler)


def stage_of(scaler: GradScaler, optimizer: Any) -> OptState:
    """Where an optimizer stands since the last `update`: ready, unscaled or stepped."""
    states: dict[int, dict[str, Any]] = getattr(scaler, "_per_optimizer_states", {})
    stage: OptState = states.get(id(optimizer), {}).get("stage", OptState.READY)
    return stage


def _listening(base: type[GradScaler]) -> dict[str, Any]:
    """The methods that stand in for those of `base`."""

    def scale(self: Any, outputs: Any) -> Any:
        __tracebackhide__ = True
        call: Callable[[], Any] = functools.partial(base.scale, self, outputs)
        for listener in _listeners.get(self, ()) if self.is_enabled() else ():
            call = functools.partial(listener.scaling, outputs, call)
        return call()

    def unscale_(self: Any, optimizer: Any) -> None:
        __tracebackhide__ = True
        for listener in _listeners.get(self, ()) if self.is_enabled() else ():
            listener.unscaling(optimizer, stage_of(self, optimizer))
        base.unscale_(self, optimizer)

    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        call: Callable[[], Any] = functools.partial(base.step, self, optimizer, *args, **kwargs)
        for listener in _listeners.get(self, ()):
            call = functools.partial(listener.stepping, optimizer, stage_of(self, optimizer), call)
        return call()

    def update(self: Any, new_scale: Any = None) -> None:
        __tracebackhide__ = True
        base.update(self, new_scale)
        for listener in _listeners.get(self, ()) if self.is_enabled() else ():
            listener.updated()

    def get_scale(self: Any) -> float:
        for listener in _listeners.get(self, ()):
            listener.asked()
        return base.get_scale(self)

    methods = (scale, unscale_, step, update, get_scale)
    return {method.__name__: functools.wraps(getattr(base, method.__name__))(method) for method in methods}


@functools.cache
def _class_for(base: Any) -> type[GradScaler]:
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    return type(base.__name__, (base,), {**names, **_listening(base), "__reduce_ex__": _plain})


def _plain(self: Any, protocol: Any) -> Any:
    """Pickles and copies are scalers that nobody watches."""
    return copyreg._reconstructor, (type(self).__mro__[1], object, None), self.__getstate__()  # type: ignore[attr-defined]


def listen(scaler: GradScaler, listener: Listener) -> None:
    known = _listeners.setdefault(scaler, [])
    if not known:
        base: Any = type(scaler)
        scaler.__class__ = _class_for(base)
    known.append(listener)


def leave(scaler: GradScaler, listener: Listener) -> None:
    known = _listeners.get(scaler, [])
    if listener in known:
        known.remove(listener)
        if not known:
            scaler.__class__ = type(scaler).__mro__[1]
