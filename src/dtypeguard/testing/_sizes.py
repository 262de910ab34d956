"""Sizes of axes that agree with each other, and the shapes that follow.

What an axis may be is asked of the checker's own `evaluate`.
"""

import contextlib
import itertools
import math
import operator
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from .._core.base.errors import AnnotationError
from .._core.check.axes import evaluate
from .._core.check.state import CallState as Call
from .._core.contract.dims import Dim, DimKind
from .._core.contract.spec import Spec, TensorSpec, UnionSpec, parts

Draw = Callable[[st.SearchStrategy[Any]], Any]
Axes = Mapping[str, Any]

# The simplest first: an axis of one element before an empty one.
SIZE = st.sampled_from((1, 2, 3, 4, 5, 2, 3, 4, 1, 2, 3, 6, 7, 0))
_RUN = st.lists(SIZE, max_size=3).map(tuple)
_FLIP = st.booleans()
_MOST = 1 << 48  # elements of a tensor; above some, one of them is seen many times
_KEPT = 64  # solutions to choose from
_TRIED = 600  # at random, where not all can be
_SMALL = (1, 2, 3, 4, 5, 6, 7, 0)
_ROUND = (10, 12, 16, 24, 32, 48, 64, 96, 100, 128, 256, 512, 768, 1000, 1024)  # what models are made of
NAME = re.compile(r"[^\W\d]\w*")


class Unfit(Exception):
    """These sizes give no shape."""


def every(spec: Spec | None, *outer: Spec) -> Iterable[Spec]:
    """A spec and all in it, in the order of checks; not again what a recursive class holds of its own kind."""
    if spec is not None and not any(spec is one for one in outer):
        yield spec
        for part in parts(spec):
            yield from every(part, *outer, spec)


def tensors_in(spec: Spec | None) -> list[TensorSpec]:
    return [one for one in every(spec) if isinstance(one, TensorSpec)]


def each(spec: Spec, inside: Iterable[Spec | None], judge: Callable[[Spec | None], None]) -> None:
    """Raise what is raised of something in a spec; in a union, only if it is of every option."""
    faults: list[Exception] = []
    inside = list(inside)
    for part in inside:
        try:
            judge(part)
        except (Unfit, AnnotationError) as fault:
            faults.append(fault)
    if faults and (not isinstance(spec, UnionSpec) or len(faults) == len(inside)):
        raise faults[0]


@dataclass
class Plan:
    """What is known of the axes of some annotations before sizes are drawn; wrong axes in `given` raise."""

    specs: Sequence[Spec | None]
    call: Call  # whose arguments expressions may use
    given: Axes
    shared: bool = False  # sizes by name, the same for all annotations of one test
    _solved: dict[tuple[int, ...], list[dict[str, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dims = [dim for spec in self.specs for tensor in tensors_in(spec) for dim in tensor.dims]
        # The names that expressions use.
        self.needed = {name for d in dims if d.kind is DimKind.SYMBOLIC for name in NAME.findall(d.text)}
        self.names = dict.fromkeys(d.text for d in dims if d.kind is DimKind.NAMED and not d.variadic)
        self.runs = dict.fromkeys(d.text for d in dims if d.kind is DimKind.NAMED and d.variadic)
        if not isinstance(self.given, Mapping):
            raise TypeError(f'axes={self.given!r} does not map names to sizes: write axes={{"b": 3}}')
        self.given = {self._written_name(name): self._checked(name, value) for name, value in self.given.items()}
        if self.shared:
            self.names = {**self.names, **dict.fromkeys(sorted(self.needed - {*self.names}))}
        self.constant = not any(isinstance(value, st.SearchStrategy) for value in self.given.values())
        if self.constant:
            self.solutions({name: value for name, value in self.given.items() if name in self.names})

    def _written_name(self, name: Any) -> str:
        """A name as it is written, with the star of those that stand for several axes."""
        if isinstance(name, str) and (name in self.names or name.removeprefix("*") in self.runs):
            return name if name in self.names or name.startswith("*") else f"*{name}"
        known = ", ".join([*self.names, *(f"*{run}" for run in self.runs)]) or "none"
        raise ValueError(f"axes: the annotation has no axis {name!r}; its named axes are {known}")

    def _checked(self, name: str, value: Any) -> Any:
        if isinstance(value, st.SearchStrategy):
            return value
        several = self._written_name(name).startswith("*")
        with contextlib.suppress(TypeError):
            sizes = tuple(map(operator.index, value if several else (value,)))
            if min(sizes, default=0) >= 0:
                return sizes if several else sizes[0]
        what = "a tuple of sizes" if several else "a size"
        raise ValueError(f"axes: {name}={value!r} is not {what}, nor a strategy of such")

    def draw(self, draw: Draw, call: Call) -> "Sizes":
        """Sizes for every name, in one call."""
        given = {name: self._checked(name, chosen(value, draw)) for name, value in self.given.items()}
        runs = {name: given[f"*{name}"] if f"*{name}" in given else draw(_RUN) for name in self.runs}
        fixed = {name: size for name, size in given.items() if name in self.names}
        if self.shared:
            fixed = {name: draw(st.shared(SIZE, key=f"dtypeguard: axis {name}")) for name in self.names}
            runs = {name: draw(st.shared(_RUN, key=f"dtypeguard: axes *{name}")) for name in self.runs}
        solved = self.solutions(fixed) or (self.solutions({}) if self.shared else [])
        if not solved:
            reject()
        sizes = {**fixed, **(draw(st.sampled_from(solved)) if len(solved) > 1 else solved[0])}
        for name in self.names:
            if name not in sizes:
                sizes[name] = draw(SIZE)
        return Sizes(self, call, sizes, runs)

    def solutions(self, fixed: dict[str, int]) -> list[dict[str, int]]:
        """Sizes of the names that expressions use with which every annotation has a shape, the smallest first."""
        names = [name for name in self.names if name in self.needed]
        key = tuple(fixed.get(name, -1) for name in names)
        if key not in self._solved:
            self._solved[key] = self._solve(names, fixed)
        return self._solved[key]

    def _solve(self, names: list[str], fixed: dict[str, int]) -> list[dict[str, int]]:
        free = [name for name in names if name not in fixed]
        known = {name: fixed[name] for name in names if name in fixed}
        empty: list[dict[str, int]] = []
        faults: list[Exception] = []
        for sizes in (_SMALL, _ROUND):
            trials = [known | dict(zip(free, product, strict=True)) for product in _products(sizes, len(free))]
            found = [trial for trial in trials if self._fits(fixed | trial, faults)]
            full = [trial for trial in found if all(trial.values())]
            empty += [trial for trial in found if not all(trial.values())]
            if full:
                return full[:_KEPT] + empty[: _KEPT // 8]
        if not empty and self.constant and not (self.shared and fixed):
            fault = next((fault for fault in faults if isinstance(fault, AnnotationError)), None)
            text = "no sizes of its axes were found that fit each other" if fault is None else fault.args[0]
            raise AnnotationError(f"no value is made: {text}") from fault
        return empty[:_KEPT]

    def _fits(self, trial: dict[str, int], faults: list[Exception]) -> bool:
        sizes = Sizes(self, self.call, {**dict.fromkeys(self.names, 1), **trial}, dict.fromkeys(self.runs, ()))
        try:
            for spec in self.specs:
                _try(spec, sizes)
        except (Unfit, AnnotationError) as fault:
            faults.append(fault)
            return False
        return True


def _products(sizes: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Sizes to try for some axes, the smallest first: all products of a few, chance among those of many."""
    if count < 4:
        return sorted(itertools.product(sizes, repeat=count), key=lambda product: max(product, default=0))
    chance = random.Random(0)
    return sorted((tuple(chance.choices(sizes[:6], k=count)) for _ in range(_TRIED)), key=max)


def _try(spec: Spec | None, sizes: "Sizes", *seen: Spec) -> None:
    """Raise Unfit or AnnotationError where a spec has no shape with these sizes."""
    if isinstance(spec, TensorSpec):
        if not any("{" in dim.text for dim in spec.dims):  # braces ask for arguments
            sizes.shape(spec, _first)
    elif spec is not None and not any(spec is outer for outer in seen):
        each(spec, parts(spec), lambda part: _try(part, sizes, *seen, spec))


def _first(strategy: st.SearchStrategy[Any]) -> Any:
    """In the place of `draw` where any answer does."""
    return {SIZE: 1, _RUN: (), _FLIP: False}[strategy]


def chosen(asked: Any, draw: Draw) -> Any:
    """An option's value: drawn, where a strategy was given."""
    return draw(asked) if isinstance(asked, st.SearchStrategy) else asked


@dataclass
class Sizes:
    """Sizes for every name, and those that a checker would have bound so far."""

    plan: Plan
    call: Call
    sizes: dict[str, int]
    runs: dict[str, tuple[int, ...]]
    bound: dict[str, int] = field(default_factory=dict)
    bound_runs: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.plan.shared:
            self.bound = dict(self.sizes)

    def shape(self, spec: TensorSpec, draw: Draw) -> tuple[int, ...]:
        """A shape that keeps an annotation; Unfit or AnnotationError, where there is none with these sizes."""
        sizes = [self._size(dim, draw) for dim in spec.dims if not dim.variadic]
        if spec.variadic is not None:
            sizes[spec.variadic : spec.variadic] = self._run(spec.dims[spec.variadic], draw)
        if math.prod(sizes) > _MOST:
            raise Unfit
        return tuple(sizes)

    def _size(self, dim: Dim, draw: Draw) -> int:
        if dim.kind is DimKind.ANONYMOUS:
            return int(draw(SIZE))
        if dim.tree:
            raise AnnotationError(f"axis `?{dim.text}` means nothing outside a PyTree, of which no values are made")
        # A 1 binds nothing, and what an expression needs must be bound.
        if dim.broadcast and (dim.text not in self.plan.needed or dim.text in self.bound) and draw(_FLIP):
            return 1
        if dim.kind is DimKind.NAMED:
            size = self.bound.get(dim.text, self.sizes[dim.text])
            if size != 1 or not dim.broadcast:
                self.bound[dim.text] = size
            return size
        try:
            return _as_whole(dim.size if dim.kind is DimKind.FIXED else evaluate(dim, self.bound, self.call), dim)
        except (Unfit, AnnotationError):
            if dim.broadcast:
                return 1
            raise

    def _run(self, dim: Dim, draw: Draw) -> tuple[int, ...]:
        if dim.tree:
            raise AnnotationError(f"axes `*?{dim.text}` mean nothing outside a PyTree, of which no values are made")
        if dim.kind is DimKind.ANONYMOUS:
            return tuple(draw(_RUN))
        run = self.runs[dim.text]
        self.bound_runs.add(dim.text)
        if not dim.broadcast:
            return tuple(run)
        kept = run[draw(st.integers(0, len(run))) :] if run and draw(_FLIP) else run
        return tuple(1 if draw(_FLIP) else size for size in kept)


def _as_whole(size: Any, dim: Dim) -> int:
    """What an expression gave, as the size of an axis; the checker asks only that they are equal."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if size == int(size) and size >= 0:
            return int(size)
    raise Unfit
