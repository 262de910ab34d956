"""A GradScaler that tells its watches what is done with it.

The scaler's class is swapped for a generated subclass, so nothing is added to the instance: it pickles, copies
and saves its state as before.
"""

import copyreg
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from .._core.base.config import LOOKS
from .._core.base.frames import hide_frames


class Listener(Protocol):
    """What a watch hears."""

    def scaling(self, outputs: Any, scaled: Callable[[], Any]) -> Any: ...
    def unscaling(self, optimizer: Optimizer, stage: OptState) -> None: ...
    def refused(self, optimizer: Optimizer) -> None: ...
    def stepping(self, optimizer: Optimizer, stage: OptState, step: Callable[[], Any]) -> Any: ...
    def updated(self, given: bool) -> None: ...
    def unchecked(self) -> None: ...
    def asked(self) -> None: ...


Listeners = Sequence[Listener]
Given = Callable[[str], Any]  # an argument of a method, by its name
_listeners: Any = WeakIdKeyDictionary()  # of each scaler, hashable or not
_scale_now = GradScaler.get_scale


def scale_of(scaler: GradScaler) -> float:
    """The scale now; the watches do not hear of it."""
    return _scale_now(scaler)


def scale_tensor(scaler: GradScaler) -> Tensor:
    """The same as it lies on the device; there is none before the first loss is scaled."""
    known: Tensor | None = getattr(scaler, "_scale", None)
    return torch.tensor(scale_of(scaler)) if known is None else known


def stage_of(scaler: GradScaler, optimizer: Any) -> OptState:
    """Where an optimizer stands since the last `update`: ready, unscaled or stepped."""
    states: dict[int, dict[str, Any]] = getattr(scaler, "_per_optimizer_states", {})
    stage: OptState = states.get(id(optimizer), {}).get("stage", OptState.READY)
    return stage


def is_generated(scaler_class: type) -> bool:
    """Whether it is a class made here."""
    return issubclass(scaler_class, _Quiet)


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


def _scale(scaler: Any, heard: Listeners, call: Callable[[], Any], given: Given) -> Any:
    __tracebackhide__ = True
    for listener in heard if scaler.is_enabled() else ():
        call = functools.partial(listener.scaling, given("outputs"), call)
    return call()


def _unscale(scaler: Any, heard: Listeners, call: Callable[[], Any], given: Given) -> Any:
    __tracebackhide__ = True
    for listener in heard if scaler.is_enabled() else ():
        optimizer = given("optimizer")
        listener.unscaling(optimizer, stage_of(scaler, optimizer))
    try:
        return call()
    except ValueError:  # "Attempting to unscale FP16 gradients."
        for listener in heard:
            listener.refused(given("optimizer"))
        raise


def _step(scaler: Any, heard: Listeners, call: Callable[[], Any], given: Given) -> Any:
    __tracebackhide__ = True
    for listener in heard:
        optimizer = given("optimizer")
        call = functools.partial(listener.stepping, optimizer, stage_of(scaler, optimizer), call)
    return call()


def _update(scaler: Any, heard: Listeners, call: Callable[[], Any], given: Given) -> Any:
    __tracebackhide__ = True
    try:
        result = call()
    except AssertionError:  # "No inf checks were recorded prior to update."
        for listener in heard:
            listener.unchecked()
        raise
    for listener in heard if scaler.is_enabled() else ():
        listener.updated(given("new_scale") is not None)
    return result


def _get_scale(scaler: Any, heard: Listeners, call: Callable[[], Any], given: Given) -> Any:
    for listener in heard:
        listener.asked()
    return call()


_METHODS = {"scale": _scale, "unscale_": _unscale, "step": _step, "update": _update, "get_scale": _get_scale}
HEARD = tuple(_METHODS)


def tell(name: str, scaler: Any, heard: Listeners, call: Callable[[], Any], args: Any, kwargs: Any) -> Any:
    """Run `call`, which is a method of a scaler with these arguments, between what its listeners do."""
    __tracebackhide__ = True
    return _METHODS[name](scaler, heard, call, functools.partial(_find_argument, args, kwargs))


def _listening_method(base: Any, name: str) -> Any:
    """The method that stands in for one of `base`; what it is given goes on as it came."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        call: Callable[[], Any] = functools.partial(getattr(base, name), self, *args, **kwargs)
        try:
            return tell(name, self, _listeners.get(self, ()), call, args, kwargs)
        except BaseException:
            hide_frames()
            raise

    return functools.wraps(inspect.unwrap(getattr(base, name)))(method)


def _find_argument(args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    return args[0] if args else kwargs.get(name, next(iter(kwargs.values()), None))


@functools.cache
def _class_for(base: Any) -> type[GradScaler]:
    names = {"__qualname__": base.__qualname__, **{name: vars(base)[name] for name in LOOKS if name in vars(base)}}
    return type(base.__name__, (_Quiet, base), {**names, **{name: _listening_method(base, name) for name in _METHODS}})


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
