"""Hints without tensors: beartype's verdict, and the class that a method's `Self` is."""

from typing import Any

import torch

from .spec import OtherSpec


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

    try:
        return bool(is_bearable(value, spec.annotation, conf=BeartypeConf(is_pep484_tower=True)))
    except BeartypeException:  # a hint that beartype has no check for
        return True


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
