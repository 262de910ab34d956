"""Modes and where they come from: decorator, context, base level, default.

Floor 1. A mode is read only after a check has failed, so it may be looked up
in three places without any call that keeps its contract paying for it.
"""

import contextvars
import enum
import functools
import inspect
import os
import threading
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch

from ._dtypes import Casting

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=enum.Enum)
ModeName = Literal["strict", "lenient", "warn", "off"]
CastingName = Literal["safe", "precision", "promote", "unsafe"]
AutocastName = Literal["follow", "ignore", "disable"]
VerifyName = Literal["first", "always", "never"]


class Mode(enum.Enum):
    """What happens when a contract is broken."""

    STRICT = "strict"
    LENIENT = "lenient"
    WARN = "warn"
    OFF = "off"


def choose(kind: type[E], value: Any, what: str) -> E:
    """The member of `kind` called `value` (any case), or a ValueError that lists the legal names."""
    if isinstance(value, kind):
        return value
    member = kind.__members__.get(value.upper()) if isinstance(value, str) else None
    if member is None:
        legal = ", ".join(repr(name.lower()) for name in kind.__members__)
        raise ValueError(f"{what}={value!r} is not a {kind.__name__.lower()}: use one of {legal}")
    return member


class Autocast(enum.Enum):
    """How a contract treats an enabled `torch.autocast` region."""

    FOLLOW = "follow"
    IGNORE = "ignore"
    DISABLE = "disable"


class Verify(enum.Enum):
    """When a narrowing repair is looked at for values that became infinite."""

    FIRST = "first"
    ALWAYS = "always"
    NEVER = "never"


def as_mode(value: Any, what: str = "mode") -> Mode | None:
    return None if value is None else choose(Mode, value, what)


def as_casting(value: Any) -> Casting:
    return Casting.PRECISION if value is None else choose(Casting, value, "casting")


_OFF, _LENIENT = Mode.OFF, Mode.LENIENT  # a member looked up on its class costs ten times as much
_base = as_mode(os.environ.get("DTYPEGUARD_MODE", "").strip() or None, "the environment variable DTYPEGUARD_MODE")
OFF_AT_IMPORT = _base is _OFF
# A linked list (mode, what was outside it): `mode` objects then hold no state and may be shared between threads.
_Modes = tuple[Mode | None, Any]
_NO_MODE: _Modes = (None, None)
_context: contextvars.ContextVar[_Modes] = contextvars.ContextVar("dtypeguard.mode", default=_NO_MODE)


class _Mirror(threading.local):
    """The same list once more, per thread: Dynamo can guard on this, not on a ContextVar."""

    def __init__(self) -> None:  # in each thread; an attribute that appears later would not be guarded on
        self.modes: _Modes = _NO_MODE


_mirror = _Mirror()


def set_mode(value: ModeName | Mode | None) -> None:
    """Set the base mode of the process; None goes back to the default, lenient.

    Raises:
        ValueError: for another value; it lists the legal ones.

    >>> import dtypeguard
    >>> dtypeguard.set_mode("strict"); dtypeguard.get_mode()
    'strict'
    >>> dtypeguard.set_mode(None); dtypeguard.get_mode()
    'lenient'
    """
    global _base
    _base = as_mode(value)


def current_mode(explicit: Mode | None = None) -> Mode:
    """The mode in force here: kill switch, explicit, context, base, default."""
    if _base is _OFF:
        return _OFF
    if explicit is not None:
        return explicit
    modes = _mirror.modes if torch.compiler.is_compiling() else _context.get()
    return modes[0] or _base or _LENIENT


def get_mode() -> ModeName:
    """The mode in force for code that does not name one itself: 'strict', 'lenient', 'warn' or 'off'."""
    return current_mode().value


class mode:  # noqa: N801  (a context manager, named like a function)
    """Use another mode inside a `with` block, or inside a decorated function.

    It is right across threads and interleaved asyncio tasks. Under
    `torch.compile` the mode is the one of the thread at trace time; a change
    traces anew.

    Args:
        value: 'strict' raises, 'lenient' repairs, 'warn' reports, 'off' lets pass.

    Raises:
        ValueError: for another value; it lists the legal ones.
        TypeError: when it decorates a generator function, whose block would leak into its caller.

    >>> import dtypeguard
    >>> with dtypeguard.mode("strict"):
    ...     dtypeguard.get_mode()
    'strict'
    """

    def __init__(self, value: ModeName | Mode) -> None:
        self._mode = choose(Mode, value, "mode")

    def __enter__(self) -> "mode":
        if not torch.compiler.is_compiling():
            _context.set((self._mode, _context.get()))
        _mirror.modes = (self._mode, _mirror.modes)
        return self

    def __exit__(self, *error: object) -> None:
        if not torch.compiler.is_compiling():
            _context.set(_context.get()[1] or _NO_MODE)
        _mirror.modes = _mirror.modes[1] or _NO_MODE

    def __call__(self, fn: F) -> F:
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise TypeError(
                f"dtypeguard.mode cannot decorate the generator function {fn.__qualname__}: "
                f"write `with dtypeguard.mode({self._mode.value!r}):` inside it, around code that does not yield"
            )
        value = self._mode

        @functools.wraps(fn)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            with mode(value):
                return fn(*args, **kwargs)

        @functools.wraps(fn)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with mode(value):
                return await fn(*args, **kwargs)

        made: Any = awaited if inspect.iscoroutinefunction(fn) else decorated
        return made  # type: ignore[no-any-return]  # functools.wraps keeps the signature


mode.__module__ = "dtypeguard"
