"""A description in words."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..._core.base.dtypes import FLOATING, TABLE, Kind, name_of
from ..._show.text import wrapped
from .held import HeldArgument, HeldModule

_COLUMNS = 78


def held_line(module: HeldModule) -> str:
    """What a module's inputs are held to, in a line."""
    place = "on any device" if module.device is None else f"on {module.device}"
    if module.dtype is None:
        return f"no dtype, as {module.reason}; {place}"
    like = "" if module.anchor is None else f"like {module.anchor}: "
    return f"{like}{name_of(module.dtype)} {place}"


def demands(module: HeldModule) -> Iterator[tuple[str, str]]:
    """The arguments of a module and what they must be, numbers of Python together; at last the result."""
    numbers = [argument.name for argument in module.arguments if argument.holds == "numbers"]
    for argument in module.arguments:
        if argument.holds != "numbers":
            yield argument.name, demand(argument, module)
    if numbers:
        yield "others", f"no tensors: {', '.join(numbers)}"
    if module.result is not None:
        yield "result", module.result


def demand(argument: HeldArgument, module: HeldModule) -> str:
    """What an argument must be."""
    if argument.skipped is not None:
        return f"not checked: it {argument.skipped}"
    if argument.dtypes is None:
        return argument.annotation or "not checked"
    moved = "; moved with the others" if argument.moves and argument.annotation is None else ""
    if argument.holds == "ids":
        return f"any integer{moved}"
    said = dtypes_said(argument.dtypes)
    more = tuple(dtype for dtype in argument.autocast or () if dtype not in argument.dtypes)
    if more and module.autocast != "disable":
        said += f"; within autocast also {', '.join(map(name_of, more))}"
    if argument.annotation is not None:
        said = f"{argument.annotation}: {said}"
    if argument.holds == "integers":
        said = f"any integer or bool, or {said}"
    elif argument.annotation is None and not said.startswith("any"):
        said = f"floats: {said}"
    if argument.holds == "labels":
        said += "; not cast where that loses digits, as a loss compares with them"
    return f"{said}; integers are moved, too" if moved else said


def dtypes_said(dtypes: Iterable[torch.dtype]) -> str:
    """Dtypes by name; all floating ones in a word, and those for storage only where there are no others."""
    ordinary = [dtype for dtype in dtypes if TABLE[dtype].kind is not Kind.STORAGE]
    found = ordinary or list(dtypes)
    words = ["any floating dtype"] if set(found) >= FLOATING else []
    return ", ".join(words + [name_of(dtype) for dtype in found if not words or dtype not in FLOATING]) or "none"


def some(paths: tuple[str, ...]) -> str:
    """Paths in a sentence."""
    if len(paths) == 1:
        return paths[0]
    names = ", ".join(paths[:2]) if len(paths) == 2 else f"{paths[0]}, ..., {paths[-1]}"
    return f"{names} ({len(paths)} modules)"


def listed(value: Any) -> str:
    """The value of an option."""
    if isinstance(value, torch.dtype):
        return name_of(value)
    return ", ".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def folded(text: str, indent: str = "") -> list[str]:
    """Text in lines of the width of a terminal."""
    return wrapped(text, indent, _COLUMNS)


def row(name: str, text: str, width: int) -> list[str]:
    """A name, and text beside it; below a long name."""
    head = f"  {name:<{width}}"
    if len(name) >= width:
        return [*folded(f"  {name}", "    "), *row("", text, width)]
    return folded(f"{head}{text}", " " * len(head))
