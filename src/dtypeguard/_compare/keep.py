"""The smallest set of modules that must stay in float32 for an error: chosen by shares, and verified by running it."""

import functools
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from .borders import check_names, keep_wide
from .measure import Measured, distance, measure
from .reach import Modules, Savings
from .subject import REFUSALS, Subject

M = TypeVar("M", bound=nn.Module)
Trial = Callable[[list[str]], float]  # the error with these modules in float32
RUNS = 5
_REPAIRS = 8  # of one run that operations refuse


@dataclass(frozen=True, slots=True)
class Kept:
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

    names: tuple[str, ...]
    error: float
    runs: int
    dtype: torch.dtype | None
    narrow: tuple[str, ...] = ()
    cast: tuple[str, ...] = ()

    def apply(self, model: M) -> M:
        """Convert a model in float32 to the low dtype, but for these modules. Returns the same model.

        Guards cast at the borders, in every mode and without a warning; `dtypeguard.unguard(model)` takes them off.
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


class Search:
    """Which modules must stay in float32."""

    def __init__(self, subject: Subject, found: Measured) -> None:
        self._subject, self._found, self.runs = subject, found, 0
        self._units = units_of(found)
        self._order: list[tuple[str, float]] = []
        self._must: list[str] = []  # without which values are lost
        self._cast: list[str] = []  # modules of which a run has shown that they refuse float32
        self._ran: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[str, ...]]] = {}  # what was cast in each run
        if found.spoilt:
            found = self._finite(found)
        self._sort(found)
        self._error = found.error
        if self._must:
            self._error = self._measured(self._closed(self._must))
            self.runs += 1

    def _sort(self, found: Measured) -> None:
        first = [(name, 1.0) for name in self._must]
        rest = {
            name: size for name, size in self._units.items() if name and not any(_within(name, n) for n in self._must)
        }
        self._order = [*first, *order(found.savings, together(found, self._units), rest)]
        named = {name for name, _ in self._order}  # then all modules that are in no other, and what is between them
        outer = [name for name in self._units if name and not any(_inside(name, o) for o in self._units if o)]
        self._order += [(name, 0.0) for name in (*outer, "") if name not in named]

    def _finite(self, found: Measured) -> Measured:
        """First of all those modules whose values float16 does not hold; then shares are measured with them."""
        overflows = Savings(narrow=0)
        for reach, count in found.overflows:
            overflows.add(reach, float(count))
        self._must = [name for name, _ in order(overflows, together(found, self._units), self._units)]
        names = self._closed(self._must)
        model = self._subject.copy()
        keep_wide(model, names, (), self._subject.dtype)
        self.runs += 1
        again = measure(self._subject, model)
        self._found.savings.narrow |= again.savings.narrow
        return again

    def run(self, target: float) -> Kept | None:
        """The fewest modules, in the order of what they save, that reach an error; None if no run has reached it."""
        if self._error <= target:
            return self._kept(len(self._must), self._error, self.runs)
        rests = [rest for _, rest in self._order]
        best = search(self._attempt, rests, len(self._must), self._error, target, RUNS - self.runs)
        return None if best is None else self._kept(best[0], best[1], best[2] + self.runs)

    def names(self, number: int) -> tuple[str, ...]:
        """The first modules, with those that share parameters with them; what is inside of another is left out."""
        return self._closed([name for name, _ in self._order[:number]])

    def _closed(self, names: list[str]) -> tuple[str, ...]:
        shared = _sharing(self._found.modules, self._units)
        names = [*names, *(other for name in names for other in shared.get(name, ()))]
        return tuple(
            name for name in self._found.modules
            if name in names and not any(other != name and _inside(name, other) for other in names)
        )  # fmt: skip

    def _narrow(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name and self._found.bits[name] & self._found.savings.narrow)

    def _kept(self, number: int, error: float, runs: int) -> Kept:
        names = self.names(number)
        return Kept(names, error, runs, self._subject.dtype, *self._ran.get(names, ((), ())))

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
        self._order = [*found, *((name, 0.0) for name in self.leaves if name not in saved), ("", 0.0)]

    def trial(self, names: list[str]) -> float:
        """The error with these modules, and those that share parameters with them, in float32."""
        return self._measured(self._closed(names))

    def _attempt(self, number: int) -> float:
        return self._measured(self.names(number))

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


def order(savings: Savings, bits: dict[str, int], units: dict[str, int]) -> list[tuple[str, float]]:
    """Modules in the order in which they are worth it, each with the share of the error² that is left after it."""
    balance, chosen, kept, saved = savings.balance(), [], 0, 0.0
    candidates = dict(units)
    while candidates:
        gains = {name: (balance.saved(kept | bits[name]) - saved) / size for name, size in candidates.items()}
        name = max(gains, key=lambda one: gains[one])
        if gains[name] <= 0:
            break
        candidates = {one: n for one, n in candidates.items() if one != name and not _inside(one, name)}
        kept |= bits[name]
        saved = balance.saved(kept)
        chosen.append((name, balance.rest(kept)))
    return chosen


def search(
    attempt: Callable[[int], float], rests: list[float], below: int, error: float, target: float, runs: int
) -> tuple[int, float, int] | None:
    """How many modules, in order, reach an error: the number, the error, and the runs that it took.

    Shares tell where to look first; each run corrects them by what it has measured. None if no run reaches it.

    Args:
        attempt: runs the model with the first n modules in float32, and gives the error.
        rests: the share of the error² that is left after the first, the second, ...
        below: a number that is known to be too small.
        error: with that number.
        target: the one to reach.
        runs: how many it may take.
    """
    above, scale = len(rests), 1.0
    found: tuple[int, float] | None = None
    for run in range(1, runs + 1):
        expected = [scale * error * math.sqrt(rest) for rest in rests]
        number = next((n for n in range(below + 1, above) if expected[n - 1] <= target), above)
        if found is not None and number == above:
            number = above - 1
        if found is None and run == runs:
            number = len(rests)
        if number <= below:
            return (*found, run - 1) if found else None
        measured = attempt(number)
        if measured <= target:
            above, found = number, (number, measured)
        else:
            below = number
            if math.isfinite(measured) and expected[number - 1] > 0:
                scale *= measured / expected[number - 1]
    return (*found, runs) if found else None
