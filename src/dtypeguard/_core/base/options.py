"""Options as users write them: `skip_args="mask"` means `skip_args=["mask"]`, and what is misspelt is named."""

import contextlib
import difflib
import functools
import inspect
import os
import re
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import torch

from .dtypes import dtype_of, name_of
from .frames import hide_frames
from .pyproject import near
from .shares import part

F = TypeVar("F", bound=Callable[..., Any])


def explained(function: F, name: str = "", **elsewhere: str) -> F:
    """A function that tells what is wrong with the arguments of its call: which option is misspelt, and what there is.

    To the function, the user's frame is one further up. `name` is what the user calls, if that is another one;
    `elsewhere` says of options that it does not have where they belong.

    Raises:
        TypeError: as Python does.
        OSError: an argument is the path of a file that cannot be read.
    """
    signature, name = inspect.signature(function), name or function.__name__
    switches = [p.name for p in signature.parameters.values() if p.annotation is bool]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            told = next((f"{key}= {elsewhere[key]}" for key in kwargs if key in elsewhere), None)
            raise TypeError(f"{name}: {told or _wrong(signature, args, kwargs) or error}") from None
        try:
            for option in switches:
                switch(option, kwargs.get(option, False))
            return function(*args, **kwargs)
        except OSError as error:
            hide_frames()
            given = _path_in(signature.bind(*args, **kwargs).arguments, error.filename)
            if given is None:
                raise
            raise type(error)(f"{name}: {unread(error, given)}") from None
        except BaseException:
            hide_frames()
            raise

    return cast(F, call)


def explained_as(name: str, **elsewhere: str) -> Callable[[F], F]:
    """The same for a method by another name, or one that lacks options of others."""
    return lambda function: explained(function, name, **elsewhere)


def unread(error: BaseException, given: str = "") -> str:
    """`cannot read nope.pt: no such file or directory`, where that is what happened; else what the error says."""
    first = error.__context__ if isinstance(error.__context__, OSError) else error
    if not isinstance(first, OSError) or first.filename is None:
        return str(error)
    name = f"{given}={first.filename!r}" if given else first.filename
    return f"cannot read {name}: {(first.strerror or 'failed').lower()}"


def _path_in(arguments: dict[str, Any], file: Any) -> str | None:
    """The argument that is the path of a file."""
    paths = {key: os.fspath(value) for key, value in arguments.items() if isinstance(value, str | os.PathLike)}
    return next((key for key, path in paths.items() if path in (file, str(file))), None)


def _wrong(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    named = [p for p in parameters if p.kind is not p.POSITIONAL_ONLY]
    names, options = [p.name for p in named], [p.name for p in named if p.default is not p.empty]
    unknown = next((name for name in kwargs if name not in names), None)
    places = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if unknown in places:
        return f"write {unknown} without its name, as the first value"
    if unknown is not None:
        return misspelt(unknown, options or names, names)
    both = next((name for name, value in zip(places, args, strict=False) if type(value) is tuple), "batch")
    if "batch" in places[len(args) :] and both != "batch":
        return f"{both} is a tuple: pass the model itself, and the batch behind it, ({', '.join(places)})"
    if len(args) > len(places) and "batch" in places:
        return f"it takes {' and '.join(places)}, and got {len(args)} values: several arguments are one batch, (x, y)"
    return None


_VOWEL = re.compile(r"(?![Uu](?:[Ii]nt|n[Ii]|se))[AEIOUaeiou]|[FHLMNRSX][A-Z]|nd")  # as spoken: an SGD, a uint8


def indefinite(noun: str) -> str:
    """A noun with its article: `a mode`, `an autocast policy`."""
    return f"{'an' if _VOWEL.match(noun) else 'a'} {noun}"


def kind_of(value: Any) -> str:
    """What an argument is that should be something else: `None`, `the class Net`, `a dict`."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else indefinite(type(value).__name__)


def refuse_maker(tool: str, value: Any) -> None:
    """A clear TypeError for what makes models: a class of them, or a function that takes no arguments."""
    if isinstance(value, type):
        raise TypeError(f"{tool} takes a model, not the class {value.__name__}: pass {value.__name__}(...)")
    if isinstance(value, types.FunctionType) and not inspect.signature(value).parameters:
        made = "what it returns" if value.__name__ == "<lambda>" else f"{value.__name__}()"
        raise TypeError(f"{tool} takes a model, not the function {value.__name__}: if it makes one, pass {made}")


def refuse_no_module(tool: str, value: Any, advice: str = "pass the nn.Module itself") -> None:
    """A clear TypeError for what is no module; `advice` is for a function."""
    refuse_maker(tool, value)
    if not isinstance(value, torch.nn.Module):
        told = f": {advice}" if callable(value) else ""
        raise TypeError(f"{tool} takes an nn.Module, not {kind_of(value)}{told}")


_DEVICES = ("cuda", "cpu", "mps", "xpu", "meta")


def device_of(value: torch.device | str | int) -> torch.device:
    """The device that an option names.

    Raises:
        ValueError: for a text that names none.
        TypeError: for what is neither.
    """
    try:
        return torch.device(value)
    except RuntimeError:
        meant = near("cuda" if value == "gpu" else value, _DEVICES)
        raise ValueError(
            f"device={value!r} is no device{meant}: use a name such as 'cuda', 'cuda:0' or 'cpu'"
        ) from None


def device_here(value: torch.device | str | int) -> torch.device:
    """The device that an option names, of this machine.

    Raises:
        ValueError, TypeError: as `device_of`, and for a device that is not here.
    """
    try:
        return torch.empty(0, device=device_of(value)).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        if reason.startswith("Could not run"):  # and then all backends that torch knows
            reason = f"PyTorch {torch.__version__} has no kernels for it"
        raise ValueError(f"device={value!r} is not here ({reason})") from None


def misspelt(name: str, options: Iterable[str], others: Iterable[str] = ()) -> str:
    """What to say of an option that does not exist; one of the others, which a call must have, may be meant too."""
    known = list(options)
    if not known:
        return f"there is no option {name}=, and no other"
    found = difflib.get_close_matches(name, [*known, *others], 1)
    meant = f"did you mean {found[0]}=? " if found else ""
    return f"there is no option {name}=: {meant}The options are {', '.join(known)}".replace(": The", ". The")


_COMMA = re.compile(r",(?![^\[{(]*[]})])")  # not one of a pattern such as `layers.{0,1}`


def several(option: str, value: Any, kinds: Any, what: str) -> tuple[Any, ...]:
    """The values of an option, each once, in the order in which they are written.

    Args:
        option: its name.
        value: one value, or an iterable of values; `"a,b"` is two, as on the command line.
        kinds: the class of a value, or a union of classes.
        what: the values that the option takes, for the message.

    Raises:
        TypeError: for a value of another class.
    """
    single = isinstance(value, kinds | str | bytes) or not isinstance(value, Iterable)
    values = (value,) if single else tuple(value)
    if isinstance(value, str) and issubclass(str, kinds):
        values = tuple(filter(None, map(str.strip, _COMMA.split(value)))) or values
    for one in values:
        if not isinstance(one, kinds):
            name = type(one).__name__
            plain = type(one).__module__ in ("builtins", "torch")  # the text of a model would be long
            raise TypeError(f"{option} takes {what}, not {f'{one!r} ({name})' if plain else f'a {name}'}")
    return tuple(dict.fromkeys(values))


def one_of(option: str, value: Any, legal: Iterable[str]) -> str:
    """One of several texts, in any case.

    Raises:
        ValueError: for another one; the message lists the legal ones.
    """
    legal = tuple(legal)
    if not isinstance(value, str) or value.lower() not in legal:
        raise ValueError(f"{option}={value!r} is none of {', '.join(map(repr, legal))}{near(value, legal)}")
    return value.lower()


def positive(option: str, value: Any, example: str) -> float:
    """An option that is a number above 0; `example` is one for the message.

    Raises:
        TypeError: for what is no number.
        ValueError: for 0, for less, and for NaN.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{option}={value!r} is no number: pass {example}")
    if not value > 0:
        raise ValueError(f"{option}={value!r}: it must be positive, for example {example}")
    return value


def share_of(option: str, value: Any) -> float:
    """An option that is a part of a whole: 0.01, or "1%" as on the command line.

    Raises:
        TypeError, ValueError: as `positive`.
    """
    with contextlib.suppress(ValueError):
        value = part(value) if isinstance(value, str) else value
    return positive(option, value, "0.01 or '1%'")


def switch(option: str, value: Any) -> bool:
    """An option that is on or off; 0, 1 and NumPy's booleans are too.

    Raises:
        TypeError: for another value, as "no", which Python would take for True.
    """
    if type(value).__name__ in ("bool", "bool_") or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{option}={value!r} is neither True nor False")


def argument_names(option: str, value: Any) -> frozenset[str]:
    """The names of arguments that an option takes."""
    return frozenset(several(option, value, str, "the name of an argument such as 'mask', or several names"))


def argument_name(option: str, value: Any) -> str | None:
    """The name of the argument that an option takes, if any."""
    one = "the name of an argument such as 'x'"
    return None if value is None else cast(str, several(option, (value,), str, one)[0])


def dtypes(option: str, value: Any, legal: Iterable[torch.dtype | None]) -> tuple[Any, ...]:
    """One dtype or several, by name or not, out of the legal ones; None is one where it is legal.

    Raises:
        TypeError, ValueError: for what is none, and for none at all.
    """
    legal = list(legal)
    kinds = torch.dtype | str | (type(None) if None in legal else torch.dtype)
    given = several(option, value, kinds, "a dtype such as torch.bfloat16, or several")
    nothing = "None" if None in legal else ""
    found = tuple(dict.fromkeys(None if one is None else dtype_of(one, option, nothing) for one in given))
    known = ", ".join(sorted("None" if one is None else name_of(one) for one in legal))
    for one in found:
        if one not in legal:
            raise ValueError(f"{option}={'None' if one is None else name_of(one)} is none of {known}")
    if not found:
        raise ValueError(f"{option} is empty: name at least one of {known}")
    return found
