"""`package.module:name` on the command line: what makes a model, or a batch."""

import importlib
import os
import pkgutil
import sys
from pathlib import PurePath
from typing import Any

from ..._core.base.pyproject import near
from ..._core.base.usage import Usage


def made_by(name: str) -> Any:
    """What the function `package.module:name` returns; an object of that name that is no function is given itself.

    Raises:
        Usage: if there is none. What the function or its module raises comes out as it is.
    """
    found = found_by(name)
    return found() if callable(found) and not _is_model(found) else found


def path_or_made(name: str) -> Any:
    """A path, or what `package.module:name` makes.

    Raises:
        Usage: as `made_by`.
    """
    return name if os.path.exists(name) or ":" not in name else made_by(name)


def both_by(model: str, batch: str | None) -> tuple[Any, Any]:
    """A model, and the batch that another function makes or that comes with the model as `(model, batch)`; or None.

    Raises:
        Usage: as `made_by`.
    """
    made = made_by(model)
    if batch is not None:
        return made, made_by(batch)
    both = isinstance(made, tuple) and len(made) == 2 and _is_model(made[0])
    return made if both else (made, None)


def found_by(name: str) -> Any:
    """The object `package.module:name`.

    Raises:
        Usage: if there is none. What its module raises comes out as it is.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise Usage(f"{name!r} names no function: write package.module:function")
    if module.endswith(".py"):
        name = ".".join(PurePath(module).with_suffix("").parts)
        raise Usage(f"{module} is a file: write the name of its module, {name}:{attribute}")
    if not sys.flags.safe_path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that it imports is missing
        raise missing(module, error.name) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise Usage(f"{module} has no {attribute!r}{near(part, dir(found))}")
        found = getattr(found, part)
    return found


def missing(module: str, part: str | None = None) -> Usage:
    """That a module is not there, with the name that was meant.

    Args:
        module: what was named.
        part: the module or the package around it that is not there.
    """
    package, _, last = (part or module).rpartition(".")
    folders = getattr(sys.modules.get(package), "__path__", ()) if package else None
    return Usage(f"there is no module {module!r}{near(last, (one.name for one in pkgutil.iter_modules(folders)))}")


def _is_model(value: Any) -> bool:
    from torch import nn

    return isinstance(value, nn.Module)
