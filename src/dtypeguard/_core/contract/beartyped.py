"""Hints without tensors: beartype's verdict, and the class that a method's `Self` is."""

import contextlib
import random
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import torch

from ..base.quiet import quiet
from .model import Path
from .spec import OtherSpec


def innermost(annotation: Any, path: Path, value: Any, hint: str) -> tuple[Path, Any, str]:
    """The first item of a list, a tuple or a dict that is to blame for it, with its path and its own hint; or it."""
    from beartype.door import is_bearable

    args, is_dict = get_args(annotation), isinstance(value, dict)
    alike = len(args) == 1 + is_dict or args[1:] == (...,)
    if not alike or not isinstance(value, list | tuple | dict) or not isinstance(value, get_origin(annotation)):
        return path, value, hint
    wanted = args[is_dict]
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if not is_bearable(item, wanted):
            name = wanted.__name__ if isinstance(wanted, type) and not get_args(wanted) else repr(wanted)
            return innermost(wanted, (*path, ("item", key)), item, name)
    return path, value, hint


def bearable(spec: OtherSpec, value: Any) -> bool:
    """Whether a value satisfies a hint without tensors, by beartype; nothing is asked while compiling."""
    classes = spec.classes
    if classes is not None:
        return isinstance(value, classes)
    if torch.compiler.is_compiling():
        return True
    from beartype import BeartypeConf
    from beartype.door import is_bearable
    from beartype.roar import BeartypeException

    first = spec.sampled is None
    if first:
        spec.sampled = _is_sampled(spec.annotation)
    state = random.getstate() if spec.sampled else None
    # At first beartype advises on how to spell a hint (`typing.Callable`), which is the author's matter.
    with quiet() if first else contextlib.nullcontext():
        try:
            return bool(is_bearable(value, spec.annotation, conf=BeartypeConf(is_pep484_tower=True)))
        except BeartypeException:  # a hint that beartype has no check for
            return True
        finally:
            if state is not None:  # which item beartype looks at it draws from the program's random numbers
                random.setstate(state)


def _is_sampled(hint: Any) -> bool:
    """Whether beartype may look at a random item of a value; False where the hint surely has no items."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType, Annotated):
        return any(map(_is_sampled, get_args(hint)))
    return origin not in (Literal, Callable) and type(hint) is not type and hint is not None


def is_own(function: str, values: tuple[Any, ...], value: Any) -> bool:
    """Whether a value is of the class in which the method of this name was written; True where it is no method."""
    first: Any = values[0] if values else None
    if value is first and not isinstance(first, type):
        return True
    name = function.rpartition(".")[0]
    kind: Any = type(first)
    classes: Any = (*kind.__mro__, *getattr(first, "__mro__", ()))
    # Of two of one name the one further up asks for less.
    cls = next((c for c in reversed(classes) if c.__qualname__.rpartition("<locals>.")[2] == name), object)
    return isinstance(value, cls)
