"""Sizes of axes that agree with each other, and the shapes that follow.

Floor 5. What an axis may be is asked of the checker's own `evaluate`.
"""

import contextlib
import itertools
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from .._axes import evaluate
from .._contract import Call
from .._errors import AnnotationError
from .._spec import Dim, DimKind, Spec, TensorSpec, UnionSpec, parts

Draw = Callable[[st.SearchStrategy[Any]], Any]
Axes = Mapping[str, Any]

# The simplest first: an axis of one element before an empty one.
SIZE = st.sampled_from((1, 2, 3, 4, 2, 3, 5, 7, 0))
_RUN = st.lists(SIZE, max_size=3).map(tuple)
_FLIP = st.booleans()
_WIDEST = 1 << 31
_KEPT = 64  # solutions to choose from
_NAME = re.compile(r"[^\W\d]\w*")


class Unfit(Exception):
    """These sizes give no shape."""


def specs_in(spec: Spec | None, *seen: Spec) -> Iterable[tuple[TensorSpec, bool]]:
    """The tensors of a spec in the order of checks; whether each must be there, and is no option of a union."""
    if isinstance(spec, TensorSpec):
        yield spec, not any(isinstance(outer, UnionSpec) for outer in seen)
    elif spec is not None and not any(spec is outer for outer in seen):
        for part in parts(spec):
            yield from specs_in(part, *seen, spec)


@dataclass
class Plan:
    """What is known of the axes of some annotations before sizes are drawn.

    Raises:
        AnnotationError: no sizes fit.
        ValueError: `given` names an axis that is not there, or gives it no size.
    """

    specs: Sequence[tuple[TensorSpec, bool]]
    call: Call  # whose arguments expressions may use
    given: Axes
    shared: bool = False  # sizes by name, the same for all annotations of one test
    needed: set[str] = field(default_factory=set)  # names that expressions use
    _solved: dict[tuple[int, ...], list[dict[str, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dims = [dim for spec, _ in self.specs for dim in spec.dims]
        self.needed = {name for d in dims if d.kind is DimKind.SYMBOLIC for name in _NAME.findall(d.text)}
        self.names = dict.fromkeys(d.text for d in dims if d.kind is DimKind.NAMED and not d.variadic)
        self.runs = dict.fromkeys(d.text for d in dims if d.kind is DimKind.NAMED and d.variadic)
        for dim in dims:
            if dim.tree:
                raise AnnotationError(f"axis `?{dim.text}` means nothing outside a PyTree, of which no values are made")
            if dim.kind is DimKind.FIXED and dim.size < 0:
                raise AnnotationError(f"axis `{dim.text}` is less than nothing: no tensor has it")
        self.given = {name: self._strategy(name, value) for name, value in self.given.items()}
        if self.shared:
            free = self.needed - {*self.names}
            self.names = {**self.names, **dict.fromkeys(sorted(free))}
        constant = {name: value for name, value in self.given.items() if not isinstance(value, st.SearchStrategy)}
        if len(constant) == len(self.given):
            self.solutions(constant)

    def _strategy(self, name: str, value: Any) -> Any:
        wanted = name.removeprefix("*")
        if wanted not in (self.runs if name.startswith("*") else {**self.names, **self.runs}):
            known = ", ".join([*self.names, *(f"*{run}" for run in self.runs)]) or "none"
            raise ValueError(f"axes: the annotation has no axis {name!r}; its named axes are {known}")
        if isinstance(value, st.SearchStrategy):
            return value
        sizes = value if wanted in self.runs and isinstance(value, tuple | list) else (value,)
        if not all(isinstance(size, int) and size >= 0 for size in sizes) or (
            wanted in self.names and sizes != (value,)
        ):
            what = "a tuple of sizes" if wanted in self.runs else "a size"
            raise ValueError(f"axes: {name}={value!r} is not {what}, nor a strategy of such")
        return value

    def draw(self, draw: Draw, call: Call) -> "Sizes":
        """Sizes for every name, in one call."""
        given = {
            name.removeprefix("*"): draw(value) if isinstance(value, st.SearchStrategy) else value
            for name, value in self.given.items()
        }
        runs = {name: given[name] if name in given else draw(_RUN) for name in self.runs}
        fixed = {name: size for name, size in given.items() if name in self.names}
        if self.shared:
            fixed = {name: draw(st.shared(SIZE, key=f"dtypeguard: axis {name}")) for name in self.names}
            runs = {name: draw(st.shared(_RUN, key=f"dtypeguard: axes *{name}")) for name in self.runs}
        solved = self.solutions(fixed) if self.needed else [{}]
        if not solved and self.shared:
            fixed = {}
            solved = self.solutions(fixed)
        if not solved:
            reject()
        sizes = {**(draw(st.sampled_from(solved)) if len(solved) > 1 else solved[0]), **fixed}
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
        found: list[dict[str, int]] = []
        fault: Exception | None = None
        for sizes in _candidates(len(free)):
            trial = {**fixed, **dict(zip(free, sizes, strict=True))}
            try:
                self._try(trial)
            except (Unfit, AnnotationError) as error:
                fault = error if fault is None or isinstance(fault, Unfit) else fault
            else:
                found.append({name: trial[name] for name in names})
                if len(found) == _KEPT:
                    break
        constant = all(not isinstance(value, st.SearchStrategy) for value in self.given.values())
        if not found and constant and not self.shared:
            text = str(fault) if isinstance(fault, AnnotationError) else "no sizes of its axes fit each other"
            raise AnnotationError(f"no value is made: {text}") from fault
        return found

    def _try(self, trial: dict[str, int]) -> None:
        sizes = Sizes(self, self.call, {**dict.fromkeys(self.names, 1), **trial}, dict.fromkeys(self.runs, ()))
        for spec, certain in self.specs:
            if certain and not any("{" in dim.text for dim in spec.dims):  # braces ask for arguments
                sizes.shape(spec, _first)


def _candidates(count: int) -> Iterable[tuple[int, ...]]:
    """Sizes to try for some axes: all small ones where they are few, then chance."""
    small = (1, 2, 3, 4, 5, 6, 7, 8, 0) if count < 4 else (2, 1, 3, 4)
    yield from itertools.islice(itertools.product(small, repeat=count), 4096)
    chance = random.Random(0)
    for top in (16, 128, 1024, 4096) if count else ():
        for _ in range(500):
            yield tuple(chance.randint(0, top) for _ in range(count))


def _first(strategy: st.SearchStrategy[Any]) -> Any:
    """In the place of `draw` where any answer does."""
    return {SIZE: 1, _RUN: (), _FLIP: False}[strategy]


@dataclass
class Sizes:
    """Sizes for every name, and those that a checker would have bound so far."""

    plan: Plan
    call: Call
    sizes: dict[str, int]
    runs: dict[str, tuple[int, ...]]
    bound: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.plan.shared:
            self.bound = dict(self.sizes)

    def shape(self, spec: TensorSpec, draw: Draw) -> tuple[int, ...]:
        """A shape that keeps an annotation.

        Raises:
            Unfit, AnnotationError: there is none with these sizes.
        """
        sizes = [self._size(dim, draw) for dim in spec.dims if not dim.variadic]
        if spec.variadic is not None:
            sizes[spec.variadic : spec.variadic] = self._run(spec.dims[spec.variadic], draw)
        return tuple(sizes)

    def _size(self, dim: Dim, draw: Draw) -> int:
        if dim.kind is DimKind.ANONYMOUS:
            return int(draw(SIZE))
        # A 1 binds nothing, and what an expression needs must be bound.
        if dim.broadcast and (dim.text not in self.plan.needed or dim.text in self.bound) and draw(_FLIP):
            return 1
        if dim.kind is DimKind.NAMED:
            size = self.bound.get(dim.text, self.sizes[dim.text])
            if size != 1 or not dim.broadcast:
                self.bound[dim.text] = size
            return size
        return _whole(dim.size if dim.kind is DimKind.FIXED else evaluate(dim, self.bound, self.call))

    def _run(self, dim: Dim, draw: Draw) -> tuple[int, ...]:
        run = draw(_RUN) if dim.kind is DimKind.ANONYMOUS else self.runs[dim.text]
        if not dim.broadcast:
            return tuple(run)
        kept = run[draw(st.integers(0, len(run))) :] if run and draw(_FLIP) else run
        return tuple(1 if draw(_FLIP) else size for size in kept)


def _whole(size: Any) -> int:
    """What an expression gave, as the size of an axis; the checker asks only that they are equal."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if size == int(size) and 0 <= size < _WIDEST:
            return int(size)
    raise Unfit
