"""The smallest set of modules that must stay in float32 for an error: chosen by shares, and verified by running it."""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from ..._core.base.dtypes import BY_NAME
from ..._show.result import Result
from .borders import check_names, keep_wide
from .measure import Measured, distance, measure
from .reach import Balance, Modules
from .subject import REFUSALS, Subject

M = TypeVar("M", bound=nn.Module)
Trial = Callable[[list[str]], float]  # the error with these modules in float32
RUNS = 5
_REPAIRS = 8  # of one run that operations refuse


@dataclass(frozen=True, slots=True)
class Kept(Result):
    """Modules that stay in float32, and what the rest of the model in the low dtype then costs.

    Attributes:
        names: of the modules; `""` is the whole model.
        error: of the outputs, measured by running the model so.
        runs: how many such runs it took to find them.
        dtype: of the rest of the model; None for autocast.
        narrow: those among the modules whose results are cast to the low dtype, as an operation that follows refuses
            float32 beside it.
        cast: modules of the rest whose inputs are cast to the low dtype, as they refuse float32 beside it.
    """

    kind: ClassVar[str] = "kept"

    names: tuple[str, ...]
    error: float
    runs: int
    dtype: torch.dtype | None
    narrow: tuple[str, ...] = ()
    cast: tuple[str, ...] = ()

    def apply(self, model: M) -> M:
        """Convert a model in float32 to the low dtype, except for these modules. Returns the same model.

        Casts at the borders are made in every mode and without a warning, guarded or not;
        `dtypeguard.unguard(model, borders=True)` takes them off.
        `state_dict` has the same keys as before. For autocast nothing is converted: these modules run outside of the
        region.

        Raises:
            CompareError: if the model lacks one of the modules, or its weights are in the low dtype already.

        >>> import torch, dtypeguard
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
        >>> result = dtypeguard.compare(model, torch.randn(4, 8), dtype=torch.bfloat16)
        >>> kept = result.keep(error=1e-6)
        >>> kept.apply(model)(torch.randn(4, 8)).dtype
        torch.float32
        """
        check_names(model, self.names, self.dtype)
        keep_wide(model, self.names, self.narrow, self.dtype, self.cast)
        return model

    def _data(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def _cell(self) -> tuple[Any, ...]:
        from .page import parts_of_kept

        return parts_of_kept(self.to_dict())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Kept":
        """The inverse of `to_dict`, for what was written to a file.

        >>> import torch, dtypeguard
        >>> kept = dtypeguard.results.Kept(("encoder",), 1e-3, 2, torch.bfloat16)
        >>> dtypeguard.results.Kept.from_dict(kept.to_dict()) == kept
        True
        """
        dtype = None if data["dtype"] is None else BY_NAME[data["dtype"]]
        names, narrow, cast = (tuple(data[name]) for name in ("names", "narrow", "cast"))
        return cls(names, float(data["error"]), int(data["runs"]), dtype, narrow, cast)


class Search:
    """Which modules must stay in float32."""

    def __init__(self, subject: Subject, found: Measured) -> None:
        self._subject, self._found, self.runs = subject, found, 0
        self._units = units_of(found)
        self._shared = True  # whether shares tell what layers save
        self._must: list[str] = []  # without which values are lost
        self._errors: dict[tuple[str, ...], float] = {}  # that were measured
        self._cast: list[str] = []  # modules of which a run has shown that they refuse float32
        self._ran: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[str, ...]]] = {}  # what was cast in each run
        if found.spoilt:
            found = self._finite(found)
        self._bits, self._balance = together(found, self._units), found.savings.balance()
        self._order = order(self._balance, self._bits, self._units, self._must)

    def _finite(self, found: Measured) -> Measured:
        """First of all keep those modules whose values float16 does not hold; then shares are measured with them."""
        self._must = cover(found, self._units)
        names = self._closed(self._must)

        def kept() -> nn.Module:
            model = self._subject.copy()
            keep_wide(model, names, (), self._subject.dtype)
            return model

        again = measure(self._subject, kept)
        self._found.savings.narrow |= again.savings.narrow
        return again

    def run(self, target: float) -> Kept | None:
        """The fewest modules, in the order of what they save, that reach an error; None if no run has reached it.

        Shares tell where to look first; each run corrects them by what it has measured.
        """
        self.runs, below, above = 0, len(self._must), len(self._order)
        base = self._attempt(self._first(below)) if self._must else self._found.error
        if base <= target:
            return self._kept(self._first(below), base)
        start = self._order[below - 1][1] if self._must else 1.0
        expected = [base * math.sqrt(rest / start) if start else base for _, rest in self._order]
        found: float | None = None
        scale = 1.0
        while self.runs < RUNS and below < (most := above if found is None else above - 1):
            number = next((n for n in range(below + 1, above) if scale * expected[n - 1] <= target), most)
            if found is None and self.runs == RUNS - 1:
                number = len(self._order)
            measured = self._attempt(self._first(number))
            if measured <= target:
                above, found = number, measured
            else:
                below = number
                if math.isfinite(measured) and expected[number - 1] > 0:
                    scale = measured / expected[number - 1]
        return None if found is None else self._trimmed(self._first(above), found, target)

    def _trimmed(self, names: tuple[str, ...], error: float, target: float) -> Kept:
        """Leave out what the others make needless, and take of a module only the parts that it needs."""
        tried = set()
        while self.runs < RUNS and self._shared:
            expected = math.sqrt(self._rest(names))
            scale = error / expected if expected and math.isfinite(error) else self._found.error
            root = target / scale if scale else math.inf
            fewer = [
                found for found in self._fewer(names, root)
                if found not in tried and self._size(found) < self._size(names) and self._covers(found)
            ]  # fmt: skip
            if not fewer:
                break
            best = min(fewer, key=lambda found: (self._size(found), self._rest(found)))
            tried.add(best)
            measured = self._attempt(best)
            if measured <= target:
                names, error = best, measured
        return self._kept(names, error)

    def _fewer(self, names: tuple[str, ...], root: float) -> Iterator[tuple[str, ...]]:
        """Sets that may do instead: without one of the modules, or with parts of it.

        `root` is what the root of the share that is left may be.
        """
        for name in names:
            others = [other for other in names if other != name]
            if math.sqrt(self._rest(others)) <= root:
                yield self._closed(others)
            inner = {one: size for one, size in self._units.items() if _inside(one, name) and size < self._units[name]}
            parts = list(others)
            for part in greedy(self._balance, self._bits, inner, _joined(self._bits, others)):
                parts.append(part)
                if math.sqrt(self._rest(parts)) <= root:
                    yield self._closed(parts)
                    break

    def _rest(self, names: Iterable[str]) -> float:
        return self._balance.rest(_joined(self._bits, names))

    def _size(self, names: Iterable[str]) -> int:
        return sum(self._units[name] for name in names)

    def _covers(self, names: Iterable[str]) -> bool:
        """Whether they hold all modules without which values are lost."""
        return all(any(_within(must, name) for name in names) for must in self._must)

    def _first(self, number: int) -> tuple[str, ...]:
        return self._closed([name for name, _ in self._order[:number]])

    def _closed(self, names: Iterable[str]) -> tuple[str, ...]:
        """With those that share parameters with them, in the model's order; what is inside of another is left out."""
        names, shared = list(names), _sharing(self._found.modules, self._units)
        names = [*names, *(other for name in names for other in shared.get(name, ()))]
        return tuple(
            name for name in self._found.modules
            if name in names and not any(other != name and _inside(name, other) for other in names)
        )  # fmt: skip

    def _narrow(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name and self._found.bits[name] & self._found.savings.narrow)

    def _kept(self, names: tuple[str, ...], error: float) -> Kept:
        return Kept(names, error, self.runs, self._subject.dtype, *self._ran.get(names, ((), ())))

    @property
    def leaves(self) -> list[str]:
        """The modules that can be kept, and have no such in them, in the model's order."""
        return [name for name in self._found.modules if self._units.get(name) == 1 and not self._holds_others(name)]

    def _holds_others(self, name: str) -> bool:
        return any(other != name and _inside(other, name) for other in self._units)

    def reorder(self, saved: dict[str, float]) -> None:
        """Take the modules in the order of what they were measured to save."""
        rest, found = 1.0, []
        for name in sorted(saved, key=lambda one: -saved[one]):
            rest = max(rest - max(saved[name], 0.0), 0.0)
            found.append((name, rest))
        others = [name for name in self.leaves if name not in saved]
        found += [(name, rest * (1 - n / len(others))) for n, name in enumerate(others, 1)]  # nothing tells them apart
        self._order, self._shared = [*found, ("", 0.0)], False

    def trial(self, names: list[str]) -> float:
        """The error with these modules, and those that share parameters with them, in float32."""
        return self._measured(self._closed(names))

    def _attempt(self, names: tuple[str, ...]) -> float:
        self.runs += 1
        if names not in self._errors:
            self._errors[names] = self._measured(names)
        return self._errors[names]

    def _measured(self, names: tuple[str, ...]) -> float:
        """The error with these modules in float32; inf if the model refuses to run so.

        A program may ask for the dtype of what it gets, so not all that becomes float32 is known before a run. Where an
        operation refuses it beside the low dtype, the module around it casts its inputs, and all of its class; or, if
        a kept module is in it, that one casts its result.
        """
        savings, bits = self._found.savings, self._found.bits
        for _ in range(_REPAIRS):
            given = any(bits[name] & savings.taken for name in names)
            narrow, cast = self._narrow(names), tuple(name for name in self._cast if not self._holds(name, names))
            self._ran[names] = narrow, cast
            model = self._subject.copy()
            keep_wide(model, names, narrow, self._subject.dtype, cast)
            stack = Modules(model, doors=False)
            try:
                return _error_with(self._subject, model, given)
            except REFUSALS:
                at = stack.refused
            inner = [name for name in names if at and _within(name, at)]
            if at and not inner and at not in self._cast:
                kind = type(self._found.modules[at])
                self._cast += [name for name, module in self._found.modules.items() if type(module) is kind]
            elif set(inner or names) <= set(narrow):
                break
            else:
                savings.taken = bits[""]
                savings.narrow |= functools.reduce(operator.or_, (bits[name] for name in inner or names))
        return math.inf

    def _holds(self, name: str, names: Iterable[str]) -> bool:
        """Whether one of several modules is in a module, or around it."""
        return any(_within(other, name) or _within(name, other) for other in names)


def _error_with(subject: Subject, model: nn.Module, given: bool) -> float:
    """The error of a model of which some modules are in float32; whether it gets the batch as it was given."""
    square = size = 0.0
    for number, low in enumerate(subject.low_outputs(model, None if given else subject.dtype)):
        apart = distance(low, subject.reference(number))
        if apart.lost:
            return math.inf
        square += apart.square
        size += apart.size
    return math.sqrt(square / size) if size else 0.0


def _within(name: str, other: str) -> bool:
    return name == other or _inside(name, other)


def _inside(name: str, other: str) -> bool:
    return not other or name.startswith(f"{other}.")


def units_of(found: Measured) -> dict[str, int]:
    """The modules that can be kept: called, and with floating parameters; how many such without parts each holds."""
    able = [
        name for name, module in found.modules.items()
        if name in found.courses and any(p.is_floating_point() for p in module.parameters())
    ]  # fmt: skip
    leaves = [name for name in able if not any(other != name and _inside(other, name) for other in able)]
    return {name: max(1, sum(leaf == name or _inside(leaf, name) for leaf in leaves)) for name in able}


def _sharing(modules: dict[str, nn.Module], units: dict[str, int]) -> dict[str, list[str]]:
    """By module, the smallest others that hold one of its parameters too."""
    holders: dict[int, list[str]] = {}
    for name in units:
        for parameter in modules[name]._parameters.values():
            if parameter is not None:
                holders.setdefault(id(parameter), []).append(name)
    shared: dict[str, list[str]] = {}
    for names in holders.values():
        for name in names if len(names) > 1 else ():
            for around in units:
                if around == name or _inside(name, around):
                    shared.setdefault(around, []).extend(
                        other for other in names if other != around and not _inside(other, around)
                    )
    return shared


def together(found: Measured, units: dict[str, int]) -> dict[str, int]:
    """The bits of each module with those of the modules that share parameters with it: they are kept together."""
    shared, bits = _sharing(found.modules, units), found.bits
    return {
        name: functools.reduce(operator.or_, (bits[other] for other in shared.get(name, ())), bits[name])
        for name in found.modules
    }


def _joined(bits: dict[str, int], names: Iterable[str]) -> int:
    return functools.reduce(operator.or_, (bits[name] for name in names), 0)


def greedy(balance: Balance, bits: dict[str, int], units: dict[str, int], kept: int) -> Iterator[str]:
    """Modules that save something beside those that are kept, the one first that saves most for each unit in it."""
    saved, candidates = balance.saved(kept), dict(units)
    while candidates:
        gains = {name: (balance.saved(kept | bits[name]) - saved) / size for name, size in candidates.items()}
        name = max(gains, key=lambda one: gains[one])
        if gains[name] <= 0:
            return
        candidates = {one: n for one, n in candidates.items() if one != name and not _inside(one, name)}
        kept |= bits[name]
        saved = balance.saved(kept)
        yield name


def order(balance: Balance, bits: dict[str, int], units: dict[str, int], first: list[str]) -> list[tuple[str, float]]:
    """Modules in the order in which they are worth it, each with the share of the error² that is left after it.

    `first` are those that must be kept in any case. All that are in no other come last, and then the model itself.
    """
    able = {name: size for name, size in units.items() if name and not any(_within(name, one) for one in first)}
    names = [*first, *greedy(balance, bits, able, _joined(bits, first))]
    outer = [name for name in units if name and not any(_inside(name, other) for other in units if other)]
    names += [name for name in outer if name not in names]
    return [*((name, balance.rest(_joined(bits, names[:n]))) for n, name in enumerate(names, 1)), ("", 0.0)]


def cover(found: Measured, units: dict[str, int]) -> list[str]:
    """The fewest modules in whose dtype no value overflows."""
    bits, masks = together(found, units), [reach.saved(0) for reach, _ in found.overflows]
    chosen: list[str] = []

    def open_with(names: Iterable[str]) -> int:
        kept = functools.reduce(operator.or_, (bits[name] for name in names), 0)
        return sum(not mask & kept for mask in masks)

    while (missing := open_with(chosen)) > 0:
        best = max((name for name in units if name), key=lambda n: (missing - open_with([*chosen, n])) / units[n])
        if open_with([*chosen, best]) == missing:
            break
        chosen.append(best)
    for name in list(chosen):  # one that was taken early may be needed no more
        without = [other for other in chosen if other != name]
        if open_with(without) == open_with(chosen):
            chosen = without
    return chosen
