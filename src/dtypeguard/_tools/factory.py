"""`package.module:name` on the command line: what makes a model, or a batch."""

import contextlib
import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from torch import nn

from .._core.base.errors import CompareError, DtypeGuardError
from .._core.base.frames import runs_user_code, shortly
from .._core.base.options import kind_of, unread
from .._core.base.pyproject import near
from .._core.base.usage import Failed, Raised, Usage
from .calls import call_of


@dataclass(frozen=True)
class Takes:
    """What a command runs: in words, and whether a value is it."""

    what: str
    fits: Callable[[Any], bool]


def _is_model(value: Any) -> bool:
    return isinstance(value, nn.Module)


MODELS = Takes("an nn.Module", _is_model)
_SEPARATORS = {"/", os.sep}
_BATCH = "return a tensor, a tuple of positional or a dict of keyword arguments"


def both_by(
    model: str, batch: str | None = None, takes: Takes = MODELS, *, paths: bool = False, lists: bool = False
) -> tuple[Any, Any]:
    """A model, and the batch that `--batch` makes, or else that comes with the model as `(model, batch)`; or None.

    `model` names a function that makes it, or the model itself; with `paths` the path of a file, which is given itself,
    may stand there, with `lists` a list of batches is a batch.
    """
    if paths and os.path.exists(model):
        return model, batch_by(batch, lists)
    if paths and ":" not in model:
        raise Usage(f"there is no file {model}; what makes a model is named package.module:function")
    found = found_by(model)
    made = _made(model, found)
    pair = isinstance(made, tuple) and len(made) == 2 and takes.fits(made[0])
    one, own = made if pair else (made, None)
    if not takes.fits(one):
        told = f"{model} returned {kind_of(one)}: return" if made is not found else (
            f"{model} is {kind_of(one)}: name a function that returns"
        )  # fmt: skip
        raise Usage(f"{told} {takes.what}, or (model, batch)")
    if batch is not None:
        return one, batch_by(batch, lists)
    return one, own if own is None else _checked(model, own, lists)


def batch_by(name: str | None, lists: bool = False) -> Any:
    """What `--batch` makes; None where it is not given."""
    return None if name is None else _checked(name, _made(name, found_by(name)), lists)


def no_batch(model: str, needed: str = "") -> Usage:
    """That a model needs a batch."""
    return Usage(
        f"a batch is missing: write --batch package.module:function{needed}, or have {model} return (model, batch)"
    )


@contextlib.contextmanager
def refusing(*kinds: type[Exception], failed: str = "") -> Iterator[None]:
    """What a function of ours refuses in here is wrong usage; what the user's own code raises in it is the user's.

    `kinds` are refusals besides TypeError and ValueError; `failed` says what it means that the user's code raises.
    """
    try:
        yield
    except (Usage, Failed, Raised):
        raise
    except Exception as error:
        as_it_is = error.__cause__ if isinstance(error, CompareError) and error._as_it_is else error
        if as_it_is is not None and not isinstance(as_it_is, DtypeGuardError) and runs_user_code(as_it_is):
            told = str(error).partition("\n")[0] if as_it_is is not error else shortly(error)
            raise Raised(f"{failed}: {told}" if failed else told) from as_it_is
        if isinstance(error, (TypeError, ValueError, *kinds)):
            told = unread(error)  # what torch says of a file has many lines
            raise Usage(told if isinstance(error, TypeError | ValueError) else told.partition("\n")[0]) from error
        raise


def _made(name: str, found: Any) -> Any:
    """What a function returns; an object that is no function is given itself."""
    if not callable(found) or _is_model(found):
        return found
    try:
        return found()
    except Exception as error:
        told = f"{name} raised {shortly(error)}"
        raise (Raised if runs_user_code(error) else Usage)(told) from error


def _checked(name: str, batch: Any, lists: bool) -> Any:
    """A batch, if it is one."""
    for one in batch if lists and isinstance(batch, list) else [batch]:
        try:
            call_of(one, name)
        except TypeError:
            more = ", or a list of such batches" if lists else ""
            raise Usage(
                f"{name} returned {kind_of(one)} as batch: {_BATCH}{more}; (value,) for one argument of another kind"
            ) from None
    return batch


def found_by(name: str) -> Any:
    """The object `package.module:name`."""
    module, _, attribute = name.partition(":")
    if not module.strip(".") or not attribute:
        raise Usage(f"{name!r} names no function: write package.module:function")
    if module.endswith(".py") or module[0] == "." or _SEPARATORS & {*module}:
        told = "is a file: write the name of its module," if module.endswith(".py") else "names no module: write"
        name, outside = _dotted(module)
        raise Usage(f"{module} {told} {name}:{attribute}{outside}")
    if not sys.flags.safe_path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise Raised(f"{module} raised {shortly(error)}") from error  # a module that it imports is missing
        raise missing(module, error.name) from error
    except Exception as error:
        raise Raised(f"{module} raised {shortly(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise Usage(f"{module} has no {attribute!r}{near(part, dir(found))}")
        found = getattr(found, part)
    return found


def _dotted(path: str) -> tuple[str, str]:
    """The name of the module that a path or a relative name means, and where it can be imported if not from here."""
    plain = path.removesuffix(".py")
    parts = PurePath(os.path.relpath(plain if _SEPARATORS & {*plain} else plain.lstrip("."))).parts
    outside = "" if parts[0] != os.pardir else f", in the folder {PurePath(*parts[:-1]).as_posix()}"
    return parts[-1] if outside else ".".join(parts), outside


def missing(module: str, part: str | None = None) -> Usage:
    """That a module, or this part of its name, is not there, with the name that was meant."""
    package, _, last = (part or module).rpartition(".")
    folders = getattr(sys.modules.get(package), "__path__", ()) if package else None
    return Usage(f"there is no module {module!r}{near(last, (one.name for one in pkgutil.iter_modules(folders)))}")
