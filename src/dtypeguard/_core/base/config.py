"""Modes and castings, and where they come from: decorator, context, base level, pyproject.toml, default.

They are read only after a check has failed, so they may be looked up
in three places without any call that keeps its contract paying for it.
"""

import contextlib
import contextvars
import enum
import functools
import inspect
import opcode
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple, Never, TypeVar

import torch

from . import private, pyproject
from .dtypes import Casting
from .errors import DtypeGuardWarning
from .frames import caller, installed, warn_at
from .options import explained, indefinite, misspelt

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


# What a generated class has of the class that it stands for, so that `inspect` finds the same source. The last two are
# there from Python 3.13 on, where it goes by the line and no longer by the name.
LOOKS = ("__module__", "__doc__", "__firstlineno__", "__static_attributes__")


_NOUNS = {"Autocast": "autocast policy", "Verify": "verify policy"}


def choose(kind: type[E], value: Any, what: str) -> E:
    """The member of `kind` called `value` (any case), or a ValueError that lists the legal names."""
    if isinstance(value, kind):
        return value
    # torch < 2.11: it does not trace `__members__`; goes with that floor
    member = getattr(kind, value.upper(), None) if isinstance(value, str) else None
    if not isinstance(member, kind):
        names = [name.lower() for name in kind.__members__]
        noun = indefinite(_NOUNS.get(kind.__name__, kind.__name__.lower()))
        wrong = f"{what}={value!r} is not {noun}{pyproject.near(value, names)}"
        raise ValueError(f"{wrong}: use one of {', '.join(map(repr, names))}")
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


def as_mode(value: Any) -> Mode | None:
    return None if value is None else choose(Mode, value, "mode")


def _as_directory(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"under={value!r} is no path: write under='src', or leave it out to mean all code")
    if not os.path.isdir(value):
        raise ValueError(f"under={os.fspath(value)!r} is no directory")
    return os.path.realpath(value)


class Base(NamedTuple):
    """Mode and casting where neither a contract nor a block names one: everywhere, or for files below a directory."""

    mode: Mode | None = None
    casting: Casting | None = None
    under: str | None = None

    def but(self, **told: Any) -> "Base":
        """The same with other parts, given as `set_mode` takes them."""
        return self._replace(**read(**told))


_READERS: dict[str, Callable[[Any], Any]] = {
    "mode": as_mode,
    "casting": lambda value: None if value is None else choose(Casting, value, "casting"),
    "autocast": lambda value: None if value is None else choose(Autocast, value, "autocast"),
    "verify": lambda value: choose(Verify, value, "verify"),
    "under": _as_directory,
}


def read(**told: Any) -> dict[str, Any]:
    """Options as they are known inside, from what a user writes."""
    return {name: _READERS[name](value) for name, value in told.items()}


_OFF, _LENIENT = Mode.OFF, Mode.LENIENT  # a member looked up on its class costs ten times as much
_NO_BASE = Base()


def initial() -> Base:
    """The base of a program that sets none: the environment's, or what the pytest plugin was told before our import."""
    told = getattr(sys.modules.get("dtypeguard._plugins.pytest"), "told", {})
    return Base(as_mode(pyproject.environment())).but(**told)


_base = initial()
OFF_AT_IMPORT = _base.mode is _OFF and _base.under is None
# A linked list (mode, casting, what was outside it): `mode` objects then hold no state and may be shared between
# threads.
_Modes = tuple[Mode | None, Casting | None, Any]
_NO_MODE: _Modes = (None, None, None)
_context: contextvars.ContextVar[_Modes] = contextvars.ContextVar("dtypeguard.mode", default=_NO_MODE)
# The base for what a tool runs by itself, in its thread; None: that of the process.
_apart: contextvars.ContextVar[Base | None] = contextvars.ContextVar("dtypeguard.base", default=None)

modes_around = _context.get  # the same object as long as no block of `mode` begins or ends


class _Mirror(threading.local):
    """The same list once more, per thread: Dynamo can guard on this, not on a ContextVar."""

    def __init__(self) -> None:  # in each thread; an attribute that appears later would not be guarded on
        self.modes: _Modes = _NO_MODE
        self.base: Base | None = None
        self.foreign: bool = private.is_foreign_thread()


_mirror = _Mirror()
_KEY = "dtypeguard.mode"
# What is stashed in a thread is a place in this list: torch 2.11 and older steal a reference to each object that they
# stash, and small integers are never freed.
_STASHED: list[_Modes] = [(mode, casting, None) for mode in (None, *Mode) for casting in (None, *Casting)]


@explained
def set_mode(
    value: ModeName | Mode | None,
    *,
    casting: CastingName | Casting | None = None,
    under: str | os.PathLike[str] | None = None,
) -> None:
    """Set the base mode of the process. None sets the default: that of pyproject.toml, else lenient.

    Args:
        value: 'strict', 'lenient', 'warn', 'off' or None.
        casting: which casts lenient mode may make for contracts that do not set `casting=`: 'safe', 'precision'
            (default), 'promote' or 'unsafe'.
        under: a directory. Mode and casting then apply only to contracts that are written in files below it, that is,
            where the file calls `enforce`, `check` or `guard`, or derives a class from `GuardedModule`. Packages that
            are installed below it (`.venv/.../site-packages`), and all other files, have the defaults.

    Raises:
        ValueError: for an unknown value; the message lists the legal ones. Also if `under` is not a directory.
        TypeError: if `under` is not a path.

    >>> import dtypeguard
    >>> dtypeguard.set_mode("strict")
    >>> dtypeguard.get_mode()
    'strict'
    >>> dtypeguard.set_mode(None)
    >>> dtypeguard.get_mode()
    'lenient'
    """
    rebase(_NO_BASE.but(mode=value, casting=casting, under=under))


def base() -> Base:
    """What is in force at the base; another object whenever that has changed."""
    return _apart.get() or _base


def rebase(other: Base) -> None:
    """Put another base in force, for the process."""
    global _base
    if other != _base:
        _base = other


@contextlib.contextmanager
def apart(other: Base) -> Iterator[None]:
    """Put another base in force in here, in this thread."""
    token, before = _apart.set(other), _mirror.base
    _mirror.base = other
    try:
        yield
    finally:
        _apart.reset(token)
        _mirror.base = before


def written_in(frame: FrameType | None) -> str | None:
    """The file of the user's line that asks for a contract, for `current_mode`; None for code without one."""
    frame = caller(frame)
    if frame is None or frame.f_code.co_filename.startswith("<"):
        return None
    file: str = frame.f_globals.get("__file__") or frame.f_code.co_filename  # a compiled file may have been moved
    return file


def _base_for(file: str | None) -> Base:
    """The base that counts for what is written in a file."""
    now = (_mirror.base or _base) if torch.compiler.is_compiling() else base()
    return now if now.under is None or _is_below(file, now.under) else _NO_BASE


def project() -> tuple[Base, Path | None]:
    """What `[tool.dtypeguard]` says for the files below it, and the pyproject.toml.

    It is looked for once, above the directory of the base or the current one.

    Raises:
        ValueError: for anything wrong in the table, and for a file that cannot be read.
    """
    return read_project(base().under)


@functools.cache
def read_project(folder: str | None) -> tuple[Base, Path | None]:
    """`project`, from a folder up."""
    path, table = pyproject.find(folder)
    told = read(mode=table.get("mode"), casting=table.get("casting"))
    return Base(under=None if path is None else os.path.realpath(path.parent), **told), path


def _project_says(what: str, file: str | None) -> str | None:
    """The name of the mode or casting that the project sets for what is written in a file."""
    told, _ = project()
    chosen = getattr(told, what)
    if chosen is None or told.under is None or not _is_below(file, told.under):
        return None
    return str(chosen.name).lower()


def scoped() -> bool:
    """Whether mode and casting depend on the file in which a contract is written."""
    told, _ = project()
    return (base().under or told.mode or told.casting) is not None


def alike() -> Base:
    """The base for code that stands in for the user's: no mode, and the casting whatever the file."""
    now = base()
    return Base(casting=project()[0].casting if now.casting is None else now.casting)


def _is_below(file: str | None, directory: str) -> bool:
    return file is not None and _owns(directory, file)


# What `torch.compiler.assume_constant_result` sets, without its import of all of Dynamo (over a second).
for _constant in (_is_below, _project_says):
    vars(_constant)["_dynamo_marked_constant"] = True


@functools.cache
def _owns(directory: str, file: str) -> bool:
    """Whether a file is below a directory, and of no package that is installed there."""
    path = Path(os.path.realpath(file))
    return path.is_relative_to(directory) and installed(str(path.relative_to(directory))) is None


def _modes() -> _Modes:
    if torch.compiler.is_compiling():
        return _mirror.modes
    modes = _context.get()
    if _mirror.foreign:  # backward on a GPU: what a checkpoint runs again has the modes of the thread that waits
        waiting = _STASHED[private.stashed(_KEY) if private.is_stashed(_KEY) else 0]
        if waiting[:2] != modes[:2]:
            modes = waiting
            _context.set(modes)
    return modes


def _put_in_force(modes: _Modes) -> None:
    _context.set(modes)
    private.stash(_KEY, _STASHED.index((*modes[:2], None)))


def current_mode(explicit: Mode | None = None, file: str | None = None) -> Mode:
    """The mode in force for a contract written in a file: kill switch, explicit, context, base, project, default."""
    mine = _base_for(file).mode
    if mine is _OFF:
        return _OFF
    told = explicit or _modes()[0] or mine
    if told is not None:
        return told
    name = _project_says("mode", file)
    return _LENIENT if name is None else choose(Mode, name, "mode")


def current_casting(explicit: Casting | None = None, file: str | None = None) -> Casting:
    """The casting in force for a contract written in a file: explicit, context, base, project, default."""
    for told in (explicit, _modes()[1], _base_for(file).casting):
        if told is not None:
            return told
    name = _project_says("casting", file)
    return Casting.PRECISION if name is None else choose(Casting, name, "casting")


def get_mode() -> ModeName:
    """The mode of contracts in the calling file that do not set `mode=`: 'strict', 'lenient', 'warn' or 'off'.

    Returns:
        The name of the mode.

    >>> import dtypeguard
    >>> with dtypeguard.mode("warn"):
    ...     dtypeguard.get_mode()
    'warn'
    """
    return current_mode(None, _asking()).value


def _asking() -> str | None:
    return written_in(sys._getframe(1))


vars(_asking)["_dynamo_marked_constant"] = True


def _is_statement(frame: FrameType) -> bool:
    """Whether what a frame calls now is a statement by itself, whose result is thrown away."""
    code, place = frame.f_code.co_code, frame.f_lasti + 2
    while place < len(code) and not code[place]:  # a call is followed by its caches
        place += 2
    return code[place : place + 1] == _POP_TOP


_POP_TOP = bytes([opcode.opmap["POP_TOP"]])


class mode:  # noqa: N801  (a context manager, named like a function)
    """Use another mode, or another casting rule, inside a `with` block, or inside a decorated function.

    It is safe with threads and asyncio tasks. Under `torch.compile` the mode is that of the thread when the function is
    traced, and a change of the mode traces the function again.

    Args:
        value: 'strict' raises, 'lenient' repairs, 'warn' warns, 'off' does nothing. None leaves the mode as it is.
        casting: which casts lenient mode may make for contracts that do not set `casting=`: 'safe', 'precision',
            'promote' or 'unsafe'. None leaves the rule as it is.

    Raises:
        ValueError: for an unknown value, and if there is neither a mode nor a casting.
        TypeError: if it decorates a class, a module, a property or a generator function. The mode of a generator
            would stay set in its caller.

    >>> import dtypeguard
    >>> with dtypeguard.mode("strict"):
    ...     dtypeguard.get_mode()
    'strict'
    >>> with dtypeguard.mode("lenient", casting="promote"):
    ...     dtypeguard.get_mode()
    'lenient'
    """

    def __init__(
        self,
        value: ModeName | Mode | None = None,
        *more: Never,
        casting: CastingName | Casting | None = None,
        **other: Never,  # where a decorator would tell, Dynamo would not trace
    ) -> None:
        if more:
            raise TypeError(f"mode takes one mode, and a rule by its name: write casting={more[0]!r}")
        for name in other:
            raise TypeError(f"mode: {misspelt(name, ['casting'])}")
        if value is None and casting is None:
            names = ", ".join(repr(name.lower()) for name in Mode.__members__)
            raise ValueError(f"mode: give a mode, or casting=: use one of {names}")
        self._mode = as_mode(value)
        self._casting = None if casting is None else choose(Casting, casting, "casting")
        if not torch.compiler.is_compiling() and _is_statement(sys._getframe(1)):
            first = "" if self._mode is None else f", or call set_mode({self._mode.value!r}) for the whole process"
            text = f"dtypeguard.{self!r} does nothing by itself: write `with dtypeguard.{self!r}:`, decorate a function"
            warn_at(sys._getframe(1), DtypeGuardWarning(text + first))

    def __enter__(self) -> "mode":
        if not torch.compiler.is_compiling():
            _put_in_force(self._nested_in(_modes()))
        _mirror.modes = self._nested_in(_mirror.modes)
        return self

    def _nested_in(self, outer: _Modes) -> _Modes:
        return self._mode or outer[0], outer[1] if self._casting is None else self._casting, outer

    def __exit__(self, *error: object) -> None:
        if not torch.compiler.is_compiling():
            _put_in_force(_context.get()[2] or _NO_MODE)
        _mirror.modes = _mirror.modes[2] or _NO_MODE

    def __repr__(self) -> str:
        return f"mode({self._as_written()})"

    def _as_written(self, first: str = "") -> str:
        """The options as a user writes them."""
        told = ((first, self._mode), ("casting=", self._casting))
        return ", ".join(f"{name}{part.name.lower()!r}" for name, part in told if part is not None)

    def __call__(self, fn: F) -> F:
        if isinstance(fn, staticmethod | classmethod):
            around: Any = type(fn)(self(fn.__func__))
            return around  # type: ignore[no-any-return]  # functools.wraps keeps the signature
        if not callable(fn) or isinstance(fn, type | torch.nn.Module):
            what = f"the class {fn.__name__}" if isinstance(fn, type) else indefinite(type(fn).__name__)
            options = self._as_written("mode=")
            advice = f"decorate methods, or write enforce({options}) or guard({options})"
            raise TypeError(f"dtypeguard.mode decorates functions, not {what}: {advice}")
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise TypeError(
                f"dtypeguard.mode cannot decorate the generator function {fn.__qualname__}: "
                f"write `with dtypeguard.{self!r}:` inside it, around code that does not yield"
            )

        @functools.wraps(fn)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            with self:
                return fn(*args, **kwargs)

        @functools.wraps(fn)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await fn(*args, **kwargs)

        made: Any = awaited if inspect.iscoroutinefunction(fn) else decorated
        return made  # type: ignore[no-any-return]  # functools.wraps keeps the signature


mode.__module__ = "dtypeguard"
_taken = [one for one in inspect.signature(mode).parameters.values() if one.annotation is not Never]
setattr(mode, "__signature__", inspect.Signature(_taken))  # noqa: B010  (which type checkers do not know)
