"""A compiled program beside itself uncompiled, and the module that the compiler makes another function of."""

import contextlib
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..._core.base.modules import unwrapped, walk
from .distances import Verdict, roundings, verdict_of, worse
from .measure import Found
from .points import between, units_of
from .side import Side
from .tape import Tape

# A compiler fuses and reorders, which is no more than rounding: three bits are as many as float16 has over bfloat16.
BITS = 8.0


def is_compiled(side: Side) -> bool:
    """Whether a program, or a part of it, is compiled: a function by what it reads, too."""
    code, read = getattr(side.program, "__code__", None), [side.program]
    if side.model is None and code is not None:
        for cell in side.program.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty one
                read.append(cell.cell_contents)
        read += [side.program.__globals__.get(name) for name in code.co_names]
    return any(map(_compiles, read))


def _compiles(value: Any) -> bool:
    if not isinstance(value, nn.Module):
        return hasattr(value, "_torchdynamo_orig_callable")
    return any(
        hasattr(module, "dynamo_ctx") or module._compiled_call_impl is not None
        or hasattr(module.__dict__.get("forward"), "_torchdynamo_orig_callable")
        for module in value.modules()
    )  # fmt: skip


def whole(side: Side) -> bool:
    """Whether a model is what `torch.compile(model)` has returned: its parts can be compiled as it is."""
    return side.compiled is not None and hasattr(side.program, "dynamo_ctx")


class Compiled:
    """Runs of a compiled program.

    Attributes:
        errors: the distance of its outputs to float64, not compiled and compiled.
        where: the module that is wrong when it alone is compiled; None where that is not known.
    """

    def __init__(self, side: Side, found: Found) -> None:
        place = "ab".index(side.name)
        self.side: Side = side
        self._eager, self._wide = found.outputs[place], found.outputs[place + 2]
        self._unit = units_of([self._eager] * 2, self._wide)[place]
        self._least = max(between(self._eager, self._wide), self._unit)
        self.outputs: list[Tensor] = self._run([""]) if whole(side) else side.as_called()
        self.errors: tuple[float, float] = between(self._eager, self._wide), between(self.outputs, self._wide)
        later = worse(*(roundings(error, self._unit) for error in self.errors)) == "b"
        self.verdict: Verdict = verdict_of(self._wrong(self.outputs), side.name if later else "")
        if self.verdict == "rounding" and not between(self.outputs, self._eager):
            self.verdict = "same"
        self.where: str | None = self._find_module() if whole(side) and self.verdict == "another function" else None

    def _run(self, paths: Sequence[str]) -> list[Tensor]:
        """The outputs with some modules compiled."""
        model, compiled = self.side.copy(), self.side.compiled
        assert compiled is not None
        modules = {unwrapped(path): (path, module) for path, module in walk(model)}
        for path in paths:
            where, module = modules[path]
            made = compiled(module)
            if not where:
                model = made
            elif made is not module:
                parent, _, name = where.rpartition(".")
                setattr(model.get_submodule(parent), name, made)
        return self.side.run(model, Tape(), bare=True)

    def _wrong(self, outputs: list[Tensor]) -> bool:
        return not between(outputs, self._wide) <= BITS * self._least

    def _find_module(self) -> str | None:
        """The innermost module that is wrong when it alone is compiled, by halves."""
        tape = Tape()
        self.side.run(self.side.copy(), tape, None)
        found = ""
        while True:
            inner = [key[0] for key, p in tape.passages.items() if p.parent and p.parent[0] == found and not key[1]]
            while len(inner) > 1:
                half = inner[: len(inner) // 2]
                inner = half if self._wrong(self._run(half)) else inner[len(inner) // 2 :]
            if not inner or not self._wrong(self._run(inner)):
                return found
            found = inner[0]
