"""The cheapest modules that must stay in float32 for an error: chosen by shares, and verified by running them."""

import functools
import math
import operator
from collections.abc import Iterable
from typing import ClassVar

from torch import Tensor, nn

from ..._core.base.dtypes import name_of
from ..._core.base.errors import CompareError
from .balance import Balance, cover, measured
from .borders import keep_wide
from .kept import Kept
from .measure import INPUTS, Measured, distance, measure
from .reach import Modules
from .subject import REFUSALS, Subject
from .text import folded, percent
from .units import Units, within

RUNS = 5
_CAUTION = 1.5  # with each run that has failed
_REPAIRS = 8  # of one run that operations refuse
_AHEAD = 3  # layers that are run to find the first
_CURVE = 20  # points
_SPREAD = 0.5  # of the parameters: a set that holds more hardly pays, unless it saves nearly all of the error
_NEARLY = 0.1  # of the error
_BATCH = 0.5  # of the error²: what its rounding makes of the error if it is told


class Search:
    """Which modules must stay in float32.

    Attributes:
        enough: of what the next layer is expected to save, for the one before to be called the first.
    """

    enough: ClassVar[float] = 1.0

    def __init__(self, subject: Subject, found: Measured) -> None:
        self._subject, self._found, self.runs = subject, found, 0
        self.units = Units(found.modules, found.courses, found.bits)
        self._must: tuple[str, ...] = ()  # without which values are lost
        self._errors: dict[tuple[tuple[str, ...], bool], float] = {}  # that were measured; with the batch as given
        self._told: list[str] = []  # of the compiled model
        self._tried: set[tuple[str, ...]] = set()  # in this search
        self._as_given = True  # whether the program takes the batch as it was given
        self._cast: list[str] = []  # modules of which a run has shown that they refuse float32
        self._ran: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[str, ...]]] = {}  # what was cast in each run
        if found.spoilt:
            found = self._finite(found)
        self._balance = Balance(found.savings, self.units)

    def _finite(self, found: Measured) -> Measured:
        """First of all keep those modules whose values float16 does not hold; then shares are measured with them."""
        masks = [reach.saved(0) for reach, _ in found.overflows]
        self._must = self.units.closed(cover(masks, self.units))

        def kept() -> nn.Module:
            model = self._subject.copy()
            keep_wide(model, self._must, (), self._subject.dtype)
            return model

        again = measure(self._subject, kept)
        self._found.savings.narrow |= again.savings.narrow
        return again

    # ------------------------------------------------------------ single layers

    @property
    def leaves(self) -> list[str]:
        """The modules that can be kept, and have no such in them, in the model's order."""
        return self.units.leaves

    def saved(self, name: str) -> float:
        """The share of the error² that keeping a module saves, as shares tell it."""
        return self._balance.saved(self.units.closed([name]))

    def lead(self) -> dict[str, float]:
        """What those layers really save that shares put first, until none that follows is expected to save more."""
        found: dict[str, float] = {}
        expected = {name: self.saved(name) for name in self.leaves}
        for name in sorted(expected, key=lambda one: -expected[one])[:_AHEAD]:
            if max(found.values(), default=0.0) >= self.enough * expected[name]:
                break
            error = self.trial([name])
            found[name] = 1 - (error / self._found.error) ** 2 if math.isfinite(error) else -math.inf
        for name, saved in found.items():
            self._balance.correct(name, saved)
        return found

    def reorder(self, saved: dict[str, float]) -> None:
        """Take the modules by what they were measured to save."""
        self._balance = Balance(measured(saved, self.units), self.units)

    def trial(self, names: Iterable[str]) -> float:
        """The error with these modules, and those that share parameters with them, in float32, and the batch in the low
        dtype, unless one of them takes it.
        """
        return self._error(self.units.closed(names), as_given=False)

    def _error(self, names: tuple[str, ...], as_given: bool) -> float:
        key = names, as_given
        if key not in self._errors:
            self._errors[key] = self._measured(names, as_given)
        return self._errors[key]

    # ------------------------------------------------------------ sets

    def run(self, target: float) -> Kept | None:
        """The cheapest modules that are found to reach an error; None if no run has reached it.

        Shares tell where to look; each run corrects them by what it has measured.

        Raises:
            CompareError: if the error is in the batch, and keeping modules does not help.
        """
        self.runs, names = 0, self._must
        self._tried.clear()
        self._told.clear()
        base = self._attempt(names, target) if names else self._found.error
        if base <= target:
            return self._as_kept(names, base, base, 1.0)
        best: tuple[str, ...] | None = None
        reached = base
        start, failed = self._balance.rest(names) or 1.0, 0
        slack = 1.0  # an error that was measured, over the expected
        before: tuple[tuple[str, ...], float] | None = None
        while self.runs < RUNS:
            level = start * (target / (base * slack)) ** 2
            if best is None:
                names = self._next(level)
                self._check_batch(names, start * (target / base) ** 2, target)
            else:
                names = self.units.closed(self._balance.cheapest(level, self._must) or best)
                if names in self._tried or self.units.price(names) >= self.units.price(best):
                    break
            error = self._attempt(names, target)
            expected = base * math.sqrt(self._balance.rest(names) / start)
            if error <= target:
                best, reached = names, error
            else:
                failed += 1
            left = start * (error / (base * slack)) ** 2
            if before is not None and math.isfinite(left):
                self._balance.learn(names, before[0], before[1] - left)
                expected = base * math.sqrt(self._balance.rest(names) / start)
            before = (names, left) if math.isfinite(left) else before
            if math.isfinite(error) and error and expected:
                slack = error / expected * (1.0 if error <= target else _CAUTION ** (failed - 1))
            elif error > target:
                slack *= 2.0
        return None if best is None else self._as_kept(best, reached, base, slack)

    def _next(self, level: float) -> tuple[str, ...]:
        """What to try: the cheapest modules that should reach a level; if they did not, all; at last the model."""
        if self.runs < RUNS - 1:
            found = self._balance.cheapest(level, self._must)
            for names in (found, self.units.outermost()):
                if names is not None and (closed := self.units.closed(names)) not in self._tried:
                    return closed
        return self.units.closed([""])

    def _check_batch(self, names: tuple[str, ...], level: float, target: float) -> None:
        """Raises CompareError where most of the model would be kept for the sake of the batch alone."""
        share = sum(part.share for part in self._found.parts.values() if part.module == INPUTS)
        if self._subject.dtype is None or share < _BATCH or self.units.share(names) <= _SPREAD:
            return
        found = self._balance.cheapest(level + share, self._must)
        others = None if found is None else self.units.closed(found)
        if others is None or self.units.price(others) > _SPREAD * self.units.price(names):
            return
        rest = f"; for the rest of the error {', '.join(folded(others, self._found.modules))} would do" * bool(others)
        raise CompareError(
            f"keep(error={target:.1g}): {percent(share)} of this error is in the batch, which is rounded to "
            f"{name_of(self._subject.low)}, and what would take it in float32 holds {percent(self.units.share(names))} "
            "of the parameters: subtract an offset from the batch, or pass it in float32 to a layer of its own that is "
            f"kept{rest}"
        )

    def _as_kept(self, names: tuple[str, ...], error: float, base: float, slack: float) -> Kept:
        share, low = self.units.share(names), self._subject.dtype
        notes = [*self._told]
        if share > _SPREAD and error > _NEARLY * self._found.error:
            notes.append(f"the error is spread over the model: {percent(share)} of its parameters are kept for this")
        cost = share, self.units.bytes(names, None if low is None else low.itemsize)
        return Kept(
            names, error, self.runs, low, *self._ran.get(names, ((), ())), *cost, tuple(self.curve(base, slack)),
            tuple(notes),
        )  # fmt: skip

    def curve(self, base: float, slack: float = 1.0) -> list[tuple[float, float]]:
        """Shares of the parameters, and the errors that are expected of keeping them."""
        start = self._balance.rest(self._must) or 1.0
        points = list(self._balance.steps(self._must))
        points = [*points[: -1 : max(1, math.ceil(len(points) / _CURVE))], *points[-1:]]
        later = [(self.units.share(names), base * slack * math.sqrt(rest / start)) for names, rest in points]
        return [(self.units.share(self._must), base), *later]

    # ------------------------------------------------------------ runs

    def _attempt(self, names: tuple[str, ...], target: float) -> float:
        self.runs += 1
        self._tried.add(names)
        error = self._error(names, as_given=self._as_given)
        return max(error, self._compiled(names)) if error <= target else error

    def _compiled(self, names: tuple[str, ...]) -> float:
        """The error of a compiled model with these modules in float32; 0 where it was not compiled."""
        subject = self._subject
        if subject.compiled is None:
            return 0.0
        if not all(draws.none for draws in subject.draws):
            self._told.append("the model draws random numbers, so the error was measured without torch.compile")
            return 0.0
        model = subject.copy()
        keep_wide(model, names, self._ran[names][0], subject.dtype, self._ran[names][1])
        dtype = None if self._as_given else subject.dtype
        try:
            return output_error(subject, subject.compiled_outputs(subject.compiled(model), dtype))
        except Exception as refusal:
            told = f"{type(refusal).__name__}: {refusal}".partition("\n")[0]
            self._told.append(f"with these modules in float32 the model does not run under torch.compile ({told})")
            return 0.0

    def _narrow(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name and self._found.bits[name] & self._found.savings.narrow)

    def _measured(self, names: tuple[str, ...], as_given: bool) -> float:
        """The error with these modules in float32; inf if the model refuses to run so.

        A program may ask for the dtype of what it gets, so not all that becomes float32 is known before a run. Where an
        operation refuses it beside the low dtype, the module around it casts its inputs, and all of its class; or, if
        a kept module is in it, that one casts its result.
        """
        savings, bits = self._found.savings, self._found.bits
        for _ in range(_REPAIRS):
            given = as_given or any(bits[name] & savings.taken for name in names)
            narrow, cast = self._narrow(names), tuple(name for name in self._cast if not self._holds(name, names))
            self._ran[names] = narrow, cast
            model = self._subject.copy()
            keep_wide(model, names, narrow, self._subject.dtype, cast)
            stack = Modules(model, doors=False)
            try:
                outputs = self._subject.low_outputs(model, None if given else self._subject.dtype)
                return output_error(self._subject, outputs)
            except REFUSALS:
                at = stack.refused
            if as_given:
                as_given = self._as_given = False
                continue
            inner = [name for name in names if at and within(name, at)]
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
        return any(within(other, name) or within(name, other) for other in names)


def output_error(subject: Subject, outputs: Iterable[list[Tensor]]) -> float:
    """The error of what a model returns for each batch."""
    square = size = 0.0
    for number, low in enumerate(outputs):
        apart = distance(low, subject.reference(number), subject.advice)
        if apart.lost:
            return math.inf
        square += apart.square
        size += apart.size
    return math.sqrt(square / size) if size else 0.0
