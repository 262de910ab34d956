"""What `describe` found: to print, to ask, to keep, to look at."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..._core.base.config import current_casting, current_mode
from ..._core.base.dtypes import name_of
from ..._core.doors.forward import Options
from ..._show.result import Result
from ..._show.text import first_few, modules_shown, number
from .held import HeldArgument, HeldModule
from .words import demands, folded, held_line, listed, row, some


@dataclass(frozen=True, slots=True, repr=False)
class Description(Result):
    """What `describe` returns.

    Attributes:
        model: the name of the model's class.
        guarded: whether the model is guarded now.
        enforced: whether it is not, but `enforce` checks its forward.
        shallow: why no module inside is guarded by itself; None if some are.
        parameters: the names of the model's parameters by their dtype.
        modules: one `HeldModule` for each module that is checked, the model itself first.
        later: the modules that are checked too, in calls with side inputs.
        skipped: the modules that are not guarded, by the reason.
        options: those of the guard.
    """

    kind: ClassVar[str] = "describe"

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

    def _data(self) -> dict[str, Any]:
        facts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return facts | {"options": self.said()}

    def _heading(self) -> str:
        return f"{self.model}: what is it held to?"

    def _cell(self) -> tuple[Any, ...]:
        from .page import parts_of

        return parts_of(self)

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
            yield from folded(f"  {held_line(module)}", "    ")
            rows = [*demands(module)]
            width = min(22, max((len(name) for name, _ in rows), default=0) + 2)
            for name, text in rows:
                yield from row(name, text, width)
            for path in first_few(modules_shown(paths)) if len(paths) > 1 else ():
                yield from folded(f"  {path}", "    ")
        for text in self.ends():
            yield ""
            yield from folded(text)

    def head(self) -> str:
        """Whether the model is guarded, and what is checked."""
        inside = sum(bool(module.path) and module.by != "enforce" for module in self.modules)
        if self.modules[0].path:
            return (
                f"{self.model} is not guarded, but {number(inside, 'module')} inside {'are' if inside > 1 else 'is'}."
            )
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
        if self.modules[0].path:
            return
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
        return said | {name: listed(value) for name, value in rest.items() if value}

    def depth(self) -> str:
        """Why the guard is as deep as it is, as a sentence."""
        if self.shallow is not None:
            later = f"; with side inputs also {number(len(self.later), 'module')} of PyTorch's" if self.later else ""
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
        by = {"enforce": ", enforced", "border": ", casts at its border"}.get(module.by, "")
        return f"{paths[0]} ({module.kind}{by})" if len(paths) == 1 else f"{len(paths)} x {module.kind}{by}"

    def ends(self) -> Iterator[str]:
        """What holds for all of it."""
        for why, paths in self.skipped.items():
            if self.shallow is None or not why.startswith(("is inside", "has no floating")):
                yield f"Not checked: {some(paths)}, as each {why}."
        if any(module.sides for module in self.modules):
            yield (
                "An argument without an annotation may have another dtype if one beside it has the right one, and a "
                "mask beside integers may: then it is a side input."
            )
        yield (
            "Unannotated integer and bool tensors, and 0-dim float32 numbers beside half parameters, keep their dtype."
        )


for _public in (Description, HeldModule, HeldArgument):
    _public.__module__ = "dtypeguard.results"
