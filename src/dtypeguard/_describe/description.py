"""What `describe` found: to print, to ask, to keep, to look at."""

import dataclasses
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._base.config import current_casting, current_mode
from .._base.dtypes import FLOATING, TABLE, Kind, name_of
from .._doors.forward import Options
from .._show.text import number

_COLUMNS = 78
_FEW = 6  # rows of paths, and of reasons


@dataclass(frozen=True, slots=True)
class HeldArgument:
    """What one argument of a forward must be; of an annotation with several arrays there is one for each.

    Attributes:
        name: of the argument.
        annotation: the jaxtyping annotation of the array, with its axes; None if the argument has none.
        dtypes: the dtypes that a tensor may have; of an argument without an annotation the floating ones, as integer
            and bool tensors keep theirs. None if the argument is not checked for dtype.
        autocast: the same within an autocast region.
        device: where a tensor must be; None for anywhere.
        moves: whether that holds for integer and bool tensors on the CPU, too.
        skipped: why it is not checked, or None.
    """

    name: str
    annotation: str | None
    dtypes: tuple[torch.dtype, ...] | None
    autocast: tuple[torch.dtype, ...] | None
    device: torch.device | None
    moves: bool
    skipped: str | None


@dataclass(frozen=True, slots=True)
class HeldModule:
    """What the inputs of one module are held to.

    Attributes:
        path: as in `named_modules()`; "" is the model itself.
        kind: the name of its class.
        by: 'guard', or 'enforce' for a forward that is decorated.
        anchor: the name of the parameter or buffer that stands for the module; None if there is none, or `dtype=` of
            the guard stands in its place.
        dtype: what floating inputs must be; None if the module has none for them.
        device: where inputs must be; None for anywhere.
        reason: why there is no dtype, or None.
        arguments: one `HeldArgument` for each argument, without `self`.
        result: what the result is checked against, or None.
        sides: whether arguments may differ beside one that has the dtype, as side inputs.
        autocast: 'follow', 'ignore' or 'disable'.
        also: the other paths of a module that is shared.
    """

    path: str
    kind: str
    by: str
    anchor: str | None
    dtype: torch.dtype | None
    device: torch.device | None
    reason: str | None
    arguments: tuple[HeldArgument, ...]
    result: str | None
    sides: bool
    autocast: str
    also: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Description:
    """What `describe` returns.

    Attributes:
        model: the name of the model's class.
        guarded: whether the model is guarded now.
        enforced: whether it is not, but `enforce` checks its forward.
        shallow: why no module inside is guarded by itself; None if some are.
        parameters: the names of the model's parameters by their dtype.
        modules: one `HeldModule` for each module that is checked, the model itself first.
        later: the modules that will be guarded, too, after the first call with a side input.
        skipped: the modules that are not guarded, by the reason.
        options: those of the guard.
    """

    model: str
    guarded: bool
    enforced: bool
    shallow: str | None
    parameters: dict[torch.dtype, tuple[str, ...]]
    modules: list[HeldModule]
    later: tuple[str, ...]
    skipped: dict[str, tuple[str, ...]]
    options: Options

    def __getitem__(self, path: str) -> HeldModule:
        """The module at a path, also of a module that is shared."""
        found = next((module for module in self.modules if path == module.path or path in module.also), None)
        if found is None:
            why = next((why for why, paths in self.skipped.items() if path in paths), "is no module of it")
            raise KeyError(f"{path!r} of {self.model} is not checked: it {why}")
        return found

    # ------------------------------------------------------------ as data

    def to_dict(self) -> dict[str, Any]:
        """The description as plain data. Dtypes are names (`bfloat16`)."""
        facts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        versions = {"dtypeguard": sys.modules["dtypeguard"].__dict__["__version__"], "torch": torch.__version__}
        told = {"modules": [dataclasses.asdict(module) for module in self.modules]}
        return {"schema": 1, **versions, **_plain(facts | told | {"options": self.said()})}

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The description as JSON. It is also written to `path`, if given."""
        text = json.dumps(self.to_dict(), indent=1)
        if path is not None:
            Path(path).write_text(text + "\n", encoding="utf-8")
        return text

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a self-contained HTML page."""
        from .page import page

        Path(path).write_text(page(self), encoding="utf-8")

    def _repr_html_(self) -> str:
        from .page import cell

        return cell(self)

    # ------------------------------------------------------------ as text

    def __repr__(self) -> str:
        return f"<description of {self.model}: {number(len(self.modules), 'module')} checked>"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from folded(self.head())
        for label, text in self.facts():
            yield from row(label, text, 12)
        for module, paths in self.groups():
            yield ""
            yield from folded(self.title(module, paths))
            yield from folded(f"  {held(module)}", "    ")
            rows = [*demands(module)]
            width = min(22, max((len(name) for name, _ in rows), default=0) + 2)
            for name, text in rows:
                yield from row(name, text, width)
            yield from (line for path in shown(paths) for line in folded(f"  {path}", "    ") if len(paths) > 1)
        for text in self.ends():
            yield ""
            yield from folded(text)

    def head(self) -> str:
        """Whether the model is guarded, and what is checked."""
        inside = sum(module.by == "guard" for module in self.modules) - 1
        what = "its forward" + (f", and those of {number(inside, 'module')} inside" if inside else "")
        if self.guarded:
            return f"{self.model} is guarded: {what} {'are' if inside else 'is'} checked."
        enforced = ", but its forward is enforced" if self.enforced else ""
        return f"{self.model} is not guarded{enforced}. guard(model) checks {what}."

    def facts(self) -> Iterator[tuple[str, str]]:
        """The model's parameters, the options, and why the guard is as deep as it is."""
        parts = [
            f"{name_of(dtype)} ({len(names)}{f', as {names[0]}' if place else ''})"
            for place, (dtype, names) in enumerate(self.parameters.items())
        ]
        yield "parameters", ", ".join(parts) or "none"
        yield "options", ", ".join(f"{name} {value}" for name, value in self.said().items())
        if self.skipped:
            yield "depth", self.depth()

    def said(self) -> dict[str, Any]:
        """The options that are in force."""
        options = self.options
        named = {
            "mode": options.mode or current_mode(None, None),
            "casting": current_casting(options.casting, None),
            "autocast": self.modules[0].autocast,
            "depth": options.depth,
        }
        rest = {name: getattr(options, name) for name in ("dtype", "device", "output_dtype", "skip_args", "move_args")}
        said = {name: getattr(value, "name", str(value)).lower() for name, value in named.items()}
        return said | {name: _listed(value) for name, value in rest.items() if value}

    def depth(self) -> str:
        """Why the guard is as deep as it is, as a sentence."""
        if self.shallow is not None:
            later = f"; after a side input also {number(len(self.later), 'module')} of PyTorch's" if self.later else ""
            reason = self.shallow.replace("is inside, and ", "")
            return f"{reason}, so the model's own forward is enough{later}"
        if self.options.depth == "all":
            return "each module that has floating parameters of its own"
        return "parameters differ in dtype, so PyTorch's modules inside are checked too"

    def groups(self) -> list[tuple[HeldModule, list[str]]]:
        """Modules of which the same is asked, with their paths."""
        found: dict[Any, tuple[HeldModule, list[str]]] = {}
        for module in self.modules:
            alike = dataclasses.replace(module, path="" if module.path else "(root)", also=())
            found.setdefault(alike, (module, []))[1].extend([module.path, *module.also])
        return list(found.values())

    def title(self, module: HeldModule, paths: list[str]) -> str:
        """What heads a group of modules."""
        if not module.path:
            return f"{module.kind}.forward"
        by = ", enforced" if module.by == "enforce" else ""
        return f"{paths[0]} ({module.kind}{by})" if len(paths) == 1 else f"{len(paths)} x {module.kind}{by}"

    def ends(self) -> Iterator[str]:
        """What holds for all of it."""
        for why, paths in self.skipped.items():
            if self.shallow is None or not why.startswith(("is inside", "has no floating")):
                yield f"Not checked: {_some(paths)}, as each {why}."
        if any(module.sides for module in self.modules):
            yield (
                "An argument without an annotation may have another dtype if one beside it has the right one: then it "
                "is a side input."
            )
        yield (
            "Unannotated integer and bool tensors, and 0-dim float32 numbers beside half parameters, keep their dtype."
        )


# ---------------------------------------------------------------- words


def held(module: HeldModule) -> str:
    """What a module's inputs are held to, in a line."""
    place = "on any device" if module.device is None else f"on {module.device}"
    if module.dtype is None:
        return f"no dtype, as {module.reason}; {place}"
    like = "" if module.anchor is None else f"like {module.anchor}: "
    return f"{like}{name_of(module.dtype)} {place}"


def demands(module: HeldModule) -> Iterator[tuple[str, str]]:
    """The arguments of a module, those alike together, and what they must be; at last the result."""
    groups: dict[Any, list[str]] = {}
    for argument in module.arguments:
        groups.setdefault(dataclasses.replace(argument, name=""), []).append(argument.name)
    largest = max(groups.values(), key=len, default=[])
    for argument, names in groups.items():
        several = len(names) > 3 and names is largest
        name = ("every argument" if len(groups) == 1 else "every other one") if several else ", ".join(names)
        yield name, demand(argument, module)
    if module.result is not None:
        yield "result", module.result


def demand(argument: HeldArgument, module: HeldModule) -> str:
    """What an argument must be."""
    if argument.skipped is not None:
        return f"not checked: it {argument.skipped}"
    if argument.dtypes is None:
        return argument.annotation or "not checked"
    said = dtypes_said(argument.dtypes)
    more = tuple(dtype for dtype in argument.autocast or () if dtype not in argument.dtypes)
    if more and module.autocast != "disable":
        said += f"; within autocast also {', '.join(map(name_of, more))}"
    if argument.annotation is not None:
        said = f"{argument.annotation}: {said}"
    return f"{said}; integers are moved, too" if argument.moves and argument.annotation is None else said


def dtypes_said(dtypes: Iterable[torch.dtype]) -> str:
    """Dtypes by name; all floating ones in a word, and those for storage only where there are no others."""
    ordinary = [dtype for dtype in dtypes if TABLE[dtype].kind is not Kind.STORAGE]
    found = ordinary or list(dtypes)
    words = ["any floating dtype"] if set(found) >= FLOATING else []
    return ", ".join(words + [name_of(dtype) for dtype in found if not words or dtype not in FLOATING]) or "none"


def shown(paths: list[str]) -> list[str]:
    """Paths that differ only in numbers in one line: `blocks.0 ... blocks.11 (12 modules)`."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(re.sub(r"\d+", "*", path), []).append(path)
    lines = [
        group[0] if len(group) == 1 else f"{group[0]} ... {group[-1]} ({len(group)} modules)"
        for group in groups.values()
    ]
    return lines if len(lines) <= _FEW + 1 else [*lines[:_FEW], f"... {number(len(lines) - _FEW, 'more line')}"]


def _some(paths: tuple[str, ...]) -> str:
    if len(paths) == 1:
        return paths[0]
    names = ", ".join(paths[:2]) if len(paths) == 2 else f"{paths[0]}, ..., {paths[-1]}"
    return f"{names} ({len(paths)} modules)"


def _listed(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return name_of(value)
    return ", ".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def folded(text: str, indent: str = "") -> list[str]:
    """Text in lines of the width of a terminal."""
    return textwrap.wrap(text, _COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def row(name: str, text: str, width: int) -> list[str]:
    """A name, and text beside it; below a long name."""
    head = f"  {name:<{width}}"
    if len(name) >= width:
        return [*folded(f"  {name}", "    "), *row("", text, width)]
    return folded(f"{head}{text}", " " * len(head))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key if isinstance(key, str) else _plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, torch.dtype):
        return name_of(value)
    return str(value) if isinstance(value, torch.device) else value


for _public in (Description, HeldModule, HeldArgument):
    _public.__module__ = "dtypeguard"
