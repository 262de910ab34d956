"""A GradScaler that tells its watches what is done with it.

Floor 5. The scaler's class is swapped for a generated subclass, so nothing is added to the instance: it pickles, copies
and saves its state as before.
"""

import copyreg
import functools
from collections.abc import Callable
from typing import Any, Protocol

from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary


class Listener(Protocol):
    """What a watch hears."""

    def scaling(self, outputs: Any, scaled: Callable[[], Any]) -> Any: ...
    def unscaling(self, optimizer: Optimizer, stage: OptState) -> None: ...
    def refused(self, optimizer: Optimizer) -> None: ...
    def stepping(self, optimizer: Optimizer, stage: OptState, step: Callable[[], Any]) -> Any: ...
    def updated(self, given: bool) -> None: ...
    def asked(self) -> None: ...


_listeners: Any = WeakIdKeyDictionary()  # of each scaler, hashable or not


def scale_of(scaler: GradScaler) -> float:
    """The scale now; the watches do not hear of it."""
    return GradScaler.get_scale(scaler)


def stage_of(scaler: GradScaler, optimizer: Any) -> OptState:
    """Where an optimizer stands since the last `update`: ready, unscaled or stepped."""
    states: dict[int, dict[str, Any]] = getattr(scaler, "_per_optimizer_states", {})
    stage: OptState = states.get(id(optimizer), {}).get("stage", OptState.READY)
    return stage


def _base(generated: type) -> type:
    """The user's class: the generated one has it after `_Quiet`."""
    return generated.__mro__[2]


class _Quiet:
    """Stands before the scaler's class, so that its `__init_subclass__` does not hear of the generated one."""

    def __init_subclass__(cls) -> None:
        pass

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles and copies are scalers that nobody watches."""
        rebuild: Any = copyreg._reconstructor  # type: ignore[attr-defined]  # public by every pickle of protocol 1
        return rebuild, (_base(type(self)), object, None), self.__getstate__()


def _listening(base: Any) -> dict[str, Any]:
    """The methods that stand in for those of `base`; what they are given goes on as it came."""

    def scale(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        call: Callable[[], Any] = functools.partial(base.scale, self, *args, **kwargs)
        for listener in _listeners.get(self, ()) if self.is_enabled() else ():
            call = functools.partial(listener.scaling, _given(args, kwargs, "outputs"), call)
        return call()

    def unscale_(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        for listener in _listeners.get(self, ()) if self.is_enabled() else ():
            optimizer = _given(args, kwargs, "optimizer")
            listener.unscaling(optimizer, stage_of(self, optimizer))
        try:
            return base.unscale_(self, *args, **kwargs)
        except ValueError:  # "Attempting to unscale FP16 gradients."
            for listener in _listeners.get(self, ()):
                listener.refused(_given(args, kwargs, "optimizer"))
            raise

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        call: Callable[[], Any] = functools.partial(base.step, self, *args, **kwargs)
        for listener in _listeners.get(self, ()):
            optimizer = _given(args, kwargs, "optimizer")
            call = functools.partial(listener.stepping, optimizer, stage_of(self, optimizer), call)
        return call()

    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        result = base.update(self, *args, **kwargs)
        for listener in _listeners.get(self, ()) if self.is_enabled() else ():
            listener.updated(_given(args, kwargs, "new_scale") is not None)
        return result

    def get_scale(self: Any, *args: Any, **kwargs: Any) -> Any:
        for listener in _listeners.get(self, ()):
            listener.asked()
        return base.get_scale(self, *args, **kwargs)

    methods = (scale, unscale_, step, update, get_scale)
    return {method.__name__: functools.wraps(getattr(base, method.__name__))(method) for method in methods}


def _given(args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    return args[0] if args else kwargs.get(name, next(iter(kwargs.values()), None))


@functools.cache
def _class_for(base: Any) -> type[GradScaler]:
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    return type(base.__name__, (_Quiet, base), {**names, **_listening(base)})


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
            scaler.__class__ = _base(type(scaler))
