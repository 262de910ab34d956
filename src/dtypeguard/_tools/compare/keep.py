"""The cheapest modules that must stay in float32 for an error: chosen by shares and by runs, and verified by a run."""

import copy
import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import nn

from ..._core.base.dtypes import name_of
from ..._core.base.errors import CompareError
from ..._show.text import modules_shown, percent
from .balance import Balance, Expected, cover, measured
from .borders import keep_wide
from .kept import Kept
from .measure import INPUTS, Measured, measure
from .subject import REFUSALS, Subject, widest
from .text import of_whole
from .trials import Trials
from .units import in_any, within

RUNS = 5
CURVED = 16  # runs, where the error is not linear
_BEFORE = CURVED - RUNS - 1  # of these, before shares are followed
_CAUTION = 1.5  # with each run that has failed
_AHEAD = 3  # layers that are run to find the first
_STAGES = 3  # sets beside which shares are measured again
_MOST = 0.5  # of the error²: what the modules of a stage save at least
_DENSE = 2.0  # times the share of parameters that several modules hold: what they save at least, to be a stage
_DEAR = 0.05  # of the parameters: a set that holds more is worth more runs
_LITTLE = 0.02  # of the parameters: a set that holds less is cheap enough
_NEAR = 3.0  # times the target: an error that is expected of a set that is worth a run
_OTHERS = 10.0  # times its own share: that of another module, from which on a layer saves what is that one's
_CURVE = 20  # points
_CHANCE = 0.15  # of the error²: what one run may differ by from what shares expect, before others are asked
_SIGMAS = 3.0  # of means of several runs
_SPREAD = 0.5  # of the parameters: a set that holds more hardly pays
_BATCH = 0.5  # of the error²: what its rounding makes of the error if it is told
_NOTED = 0.5  # of the error that is left: what the batch in the low dtype adds, if it is told


@dataclass(slots=True)
class Stage:
    """Modules that are kept in any case, and the shares of the error that is left beside them."""

    names: tuple[str, ...]
    found: Measured
    balance: Balance


class Search(Trials):
    """Which modules must stay in float32."""

    def __init__(self, subject: Subject, found: Measured) -> None:
        super().__init__(subject, found)
        self.leaves = self.units.leaves
        must: tuple[str, ...] = ()
        if found.spoilt:  # first of all keep those without which values are lost
            must, found = self._finite(found)
        self._stages = [Stage(must, found, Balance(found.savings, self.units))]
        self._stage = self._stages[0]
        self._found_beside: dict[tuple[str, ...], Measured] = {}  # of all searches
        self._curved = False  # whether runs tell what layers save, as shares do not

    def anew(self) -> "Search":
        """A copy for one search, which must not depend on those before it."""
        made = copy.copy(self)
        made._errors, made._ran, made._cast = {**self._errors}, {**self._ran}, [*self._cast]
        made._told, made._tried = [], {}
        made._stages = [dataclasses.replace(one, balance=one.balance.copied()) for one in self._stages]
        return made

    def _finite(self, found: Measured) -> tuple[tuple[str, ...], Measured]:
        """Those modules whose values float16 does not hold, and the shares with them in float32."""
        masks = [reach.saved(0) for reach, _ in found.overflows]
        names = self.units.closed(cover(masks, self.units))
        return names, self._beside(names)

    def _beside(self, names: tuple[str, ...]) -> Measured:
        """The shares of the error with some modules in float32."""
        narrow, cast = self._ran.get(names, ((), ()))

        def kept() -> nn.Module:
            model = self._subject.copy()
            keep_wide(model, names, narrow, self._subject.dtype, cast)
            return model

        try:
            again = measure(self._subject, kept, self._as_given)
        except REFUSALS:
            if not self._as_given:
                raise
            again = measure(self._subject, kept)  # the program does not take the batch as it was given
        self._found.savings.narrow |= again.savings.narrow
        return again

    def _beside_batch(self) -> Stage:
        """No modules, and the shares with the batch as it is passed."""
        if () not in self._found_beside:
            self._found_beside[()] = self._beside(())
        found = self._found_beside[()]
        return Stage((), found, Balance(found.savings, self.units)) if found.shared else self._stages[0]

    # ------------------------------------------------------------ single layers

    def saved(self, name: str) -> float:
        """The share of the error² that keeping a module saves, as shares tell it."""
        return self._stages[0].balance.saved(self.units.closed([name]))

    def lead(self) -> dict[str, float]:
        """What those layers really save that shares put first, until none that follows is expected to save more."""
        found: dict[str, float] = {}
        expected = {name: self.saved(name) for name in self.leaves}
        for name in sorted(expected, key=lambda one: -expected[one])[:_AHEAD]:
            if max(found.values(), default=0.0) >= expected[name]:
                break
            error = self.trial([name])
            saved = 1 - (error / self._found.error) ** 2 if math.isfinite(error) else -math.inf
            if not self._by_chance(name, saved, expected[name]):
                found[name] = saved
        for name, saved in found.items():
            self._stages[0].balance.correct(name, saved)
        return found

    def _by_chance(self, name: str, saved: float, expected: float) -> bool:
        """Whether a layer saves so much, or so little, in one run alone: others show nothing of it."""
        if not math.isfinite(saved) or abs(saved - expected) <= _CHANCE:
            return False
        kept, plain = self.redrawn([name]), self.redrawn([])
        mean = statistics.fmean(plain)
        spread = (statistics.pvariance(plain) + statistics.pvariance(kept)) / len(plain)
        return abs(1 - statistics.fmean(kept) / mean - expected) <= _SIGMAS * math.sqrt(spread) / mean

    def inputs(self) -> dict[str, float]:
        """What passing the batch in float32 saves, and keeping nothing; empty where one layer casts it."""
        error = self.batch()
        return {INPUTS: 1 - (error / self._found.error) ** 2} if error is not None and math.isfinite(error) else {}

    def suspects(self, stage: Stage | None = None) -> list[str]:
        """The layers that are run first where shares do not tell: those of the largest share, and that saves most."""
        stage = stage or self._stages[0]
        own = dict.fromkeys(self.leaves, 0.0)
        for part in stage.found.parts.values():
            if part.module in own:
                own[part.module] += part.share
        left = [name for name in self.leaves if not in_any(name, stage.names)]
        gains = {name: stage.balance.saved(self.units.closed([*stage.names, name])) for name in left}
        causes = sorted(left, key=lambda name: -abs(own[name]))[: _AHEAD - 1]
        return list(dict.fromkeys([*causes, *sorted(left, key=lambda name: -gains[name])]))[:_AHEAD]

    def through(self, name: str) -> str:
        """The module whose share a layer saves by what it returns in float32, if that is nearly all that it saves."""
        savings, bits = self._found.savings, self.units.bits.get(name, 0)
        innermost = list(self._found.bits)
        shares: dict[str, float] = {}
        for reach, share in savings.parts.items():
            if reach.saved(savings.narrow) & bits and reach.inside > 0:
                where = innermost[reach.inside.bit_length() - 1]
                shares[where] = shares.get(where, 0.0) + share
        own = sum(abs(share) for where, share in shares.items() if within(where, name))
        others = {where: abs(share) for where, share in shares.items() if not within(where, name)}
        most = max(others, key=lambda where: others[where], default="")
        return most if others.get(most, 0.0) > _OTHERS * own else ""

    def reorder(self, saved: dict[str, float]) -> None:
        """Take the modules by what they were measured to save."""
        self._stages[0].balance = Balance(measured(saved, self.units), self.units)
        self._curved = True

    def _is_lucky(self, names: tuple[str, ...], error: float) -> bool:
        stage = self._stage
        if not stage.found.linear or names == stage.names:
            return False
        before = self.facts().get(stage.names, self._found.error)
        left = stage.balance.rest(names) / (stage.balance.rest(stage.names) or 1.0)
        return left - (error / before) ** 2 > _CHANCE if before else False

    # ------------------------------------------------------------ sets

    def run(self, target: float) -> Kept | None:
        """The cheapest modules that are found to reach an error; None if no run has reached it.

        Shares tell where to look; each run corrects them by what it has measured. Where they do not explain the error,
        it begins with the sets that were run: the cheapest that reaches it, then those that save most of it, beside
        which shares are measured again.
        """
        self.runs, self._stage = 0, self._stages[0]
        self._tried.clear()
        self._told.clear()
        names = self._stage.names
        base = self._found.error
        if names or self.batch() is not None:
            base = self._attempt(names, target)
        if not names and base > target and base < self._found.error:  # shares are those beside the batch, too
            self._stages = self._stages if self._curved else [self._beside_batch()]
            self._stage = self._stages[0]
        if base <= target:
            return self._as_kept(names, base, base)
        best: tuple[str, ...] | None = None
        if self._curved:
            best, base = self._deepen(self._known(target), base, target)
        best = self._descend(best, base, target)
        if best is None:
            return None
        best = self._shrunk(best, base, target)
        return self._as_kept(best, self._tried[best], base)

    def _known(self, target: float, best: tuple[str, ...] | None = None) -> tuple[str, ...] | None:
        """The cheapest of the sets that were run and reach the error, if it is cheaper than another."""
        for names in sorted(self._reaching(target), key=self.units.price):
            if self.runs >= _BEFORE:
                break
            if not self._cheaper(names, best) or self._attempt(names, target) <= target:
                return names if self._cheaper(names, best) else best
        return best

    def _reaching(self, target: float) -> list[tuple[str, ...]]:
        return [names for names, error in self.facts().items() if error <= target and names not in self._tried]

    def _cheaper(self, names: tuple[str, ...], best: tuple[str, ...] | None) -> bool:
        return best is None or self.units.price(names) < self.units.price(best)

    def _deepen(
        self, best: tuple[str, ...] | None, base: float, target: float
    ) -> tuple[tuple[str, ...] | None, float]:  # fmt: skip
        """Go on to the modules that save most of the error, until shares explain what is left beside them.

        It returns the cheapest set that reaches the error, and the error of the stage.
        """
        for depth in range(1, _STAGES + 1):
            enough = best is not None and self.units.share(best) <= _LITTLE
            if self._stage.found.linear or enough or self.runs + _AHEAD > _BEFORE:
                break
            if depth == len(self._stages):
                names = self._worth(self._stage)
                best = self._known(target, best)
                if names is None or not self._cheaper(names, best) or not self._measure(names):
                    break
            following = self._stages[depth]
            if not self._cheaper(following.names, best):
                break
            error = self._attempt(following.names, target)
            if error <= target:
                return following.names, base
            self._stage, base = following, error
        return best, base

    def _worth(self, stage: Stage) -> tuple[str, ...] | None:
        """The cheapest set with all of a stage that saves most of what is left beside it; suspects are run."""
        suspects = [self.units.closed([*stage.names, name]) for name in self.suspects(stage)]
        for names in suspects:
            self.runs += (names, self._given(names, self._as_given)) not in self._errors
            self._error(names, self._as_given)
        facts = self.facts()
        base = facts.get(stage.names, self._found.error)
        worth = []
        for names, error in facts.items():
            if names == stage.names or "" in names or not all(in_any(name, names) for name in stage.names):
                continue
            saved = 1 - (error / base) ** 2
            dense = saved >= _DENSE * (self.units.share(names) - self.units.share(stage.names))
            if saved >= _MOST and (dense or names in suspects):
                worth.append(names)
        return min(worth, key=self.units.price, default=None)

    def _measure(self, names: tuple[str, ...]) -> bool:
        """Add a stage, if there are shares with these modules in float32."""
        try:
            found = self._beside(names)
        except REFUSALS:
            return False
        if found.shared and not found.lost:
            self._stages.append(Stage(names, found, Balance(found.savings, self.units)))
        return found.shared and not found.lost

    def _expected(self, base: float) -> Expected:
        """The errors that shares expect beside a stage, whose error is `base`, as runs have corrected them.

        Runs with another batch are not of this program: where the batch makes an error, they say nothing of its layers.
        """
        stage = self._stage
        points = [(stage.balance.rest(stage.names) or 1.0, base)]
        for (names, given), error in self._errors.items():
            beside = names != stage.names and all(in_any(name, names) for name in stage.names)
            if beside and given == self._given(names, self._as_given):
                points.append((stage.balance.rest(names), error))
        return Expected(points)

    def _descend(self, best: tuple[str, ...] | None, base: float, target: float) -> tuple[str, ...] | None:
        """The cheapest set that is found to reach the error, by the shares of a stage, each of which a run corrects."""
        first, balance = self._stage.names, self._stage.balance
        start, failed, caution = balance.rest(first) or 1.0, 0, 1.0
        before: tuple[tuple[str, ...], float] | None = None
        last = self.runs + RUNS if self._curved else RUNS
        while self.runs < last and (best is None or self.units.share(best) > _LITTLE):
            expected = self._expected(base)
            level = expected.rest(target / caution)
            if best is None:
                names = self._next(level, target, self.runs == last - 1)
                self._check_batch(names, start * (target / base) ** 2, target)
            else:
                names = self.units.closed(balance.cheapest(level, first) or best)
                if names in self._tried or not self._cheaper(names, best):
                    break
            error = self._attempt(names, target)
            if error <= target:
                best, caution = names, 1.0
            else:
                failed += 1
                caution = _CAUTION ** (failed - 1) if math.isfinite(error) else 2 * caution
            left = expected.rest(error) if math.isfinite(error) else None
            if before is not None and left is not None:
                balance.learn(names, before[0], before[1] - left)
            before = before if left is None else (names, left)
        return best

    def _next(self, level: float, target: float, last: bool) -> tuple[str, ...]:
        """What to try: the cheapest modules that should reach a level; if they did not, all; at last the model."""
        if not last:
            sets = [one.cheapest(level, self._stage.names) for one in (self._stage.balance, *self._uncast())]
            likely = [self.units.closed(found) for found in sets if found is not None]
            for several in ([*likely, *self._reaching(target)], [self.units.closed(self.units.outermost())]):
                untried = [names for names in several if names not in self._tried]
                if untried:
                    return min(untried, key=self.units.price)
        return self.units.closed([""])

    def _uncast(self) -> Iterator[Balance]:
        """What is saved where no result is cast back: what takes it may be kept, too."""
        savings = copy.copy(self._stage.found.savings)
        if savings.narrow:
            savings.narrow = 0
            yield Balance(savings, self.units)

    def _shrunk(self, best: tuple[str, ...], base: float, target: float) -> tuple[str, ...]:
        """Without those modules that runs show not to be needed, the dearest first; of others without such parts."""
        linear, most = self._stage.found.linear, CURVED if self._curved else RUNS
        if self.uncast(best) or self.units.share(best) > _DEAR:  # shares may be those of results that are cast back
            linear, most = False, CURVED
        tried, pieces = set[str](), [*best]

        def reaches(names: Iterable[str]) -> bool:
            others = self.units.closed(names)
            if not others or others in self._tried or not self._cheaper(others, best) or self.runs >= most:
                return False
            likely = self._expected(base).error(self._stage.balance.rest(others)) <= _NEAR * target
            return (likely if linear else self._open(others, target)) and self._attempt(others, target) <= target

        while self.runs < most:
            left = [name for name in pieces if name not in tried and self.units.share([name]) > _LITTLE]
            left = [name for name in left if not in_any(name, self._stages[0].names)]
            if not left:
                parts = pieces if linear else self._parts(pieces)
                if parts == pieces:
                    break
                pieces = parts  # none of them can go, a part may
                continue
            name = max(left, key=lambda one: self.units.price([one]))
            tried.add(name)
            rest = [other for other in pieces if other != name]
            dear = [] if linear else sorted(self.units.direct(name), key=lambda one: self.units.price([one]))[:-1]
            for names in (rest, [*rest, *dear])[: 1 + bool(dear)]:
                if reaches(names):
                    best, pieces = self.units.closed(names), names
                    break
        return best

    def _parts(self, names: list[str]) -> list[str]:
        """Modules, and of those that hold nothing but others these."""
        parts = [(name, self.units.direct(name)) for name in names]
        wholes = [inner if inner and not self._cheaper(tuple(inner), (name,)) else [name] for name, inner in parts]
        return [*itertools.chain(*wholes)]

    def _open(self, names: tuple[str, ...], target: float) -> bool:
        """Whether no run with more modules has missed the error."""
        return not any(
            error > target and all(in_any(name, others) for name in names) for others, error in self.facts().items()
        )

    def _check_batch(self, names: tuple[str, ...], level: float, target: float) -> None:
        """Raises CompareError where most of the model would be kept for the sake of the batch alone."""
        share = sum(part.share for part in self._stage.found.parts.values() if part.module == INPUTS)
        if self._subject.dtype is None or share < _BATCH or self.units.share(names) <= _SPREAD:
            return
        found = self._stage.balance.cheapest(level + share, self._stage.names)
        others = None if found is None else self.units.closed(found)
        if others is None or self.units.price(others) > _SPREAD * self.units.price(names):
            return
        rest = ", ".join(modules_shown(others, self._found.modules))
        rest = f"; for the rest of the error {rest} would do" * bool(others)
        raise CompareError(
            f"keep(error={target:.3g}): {percent(share)} of this error is in the batch, which is rounded to "
            f"{name_of(self._subject.low)}, and what would take it in float32 holds "
            f"{of_whole(self.units.share(names))} of the parameters: subtract an offset from the batch, or pass it in "
            f"float32 to a layer of its own that is kept{rest}"
        )

    def _as_kept(self, names: tuple[str, ...], error: float, base: float) -> Kept:
        share, low = self.units.share(names), self._subject.dtype
        notes = [*self._told]
        if not self._as_given and low is not None:
            notes.append(
                f"the model does not run with the batch in float32: pass it in {name_of(low)}, as was done here"
            )
        elif names and low is not None and (own := self._of_batch()) > _NOTED * error:
            wide = name_of(widest(self._subject.model))
            notes.append(f"pass the batch in {wide}, as was done here: in {name_of(low)} it adds {percent(own)}")
        if share > _SPREAD:
            notes.append(f"more than half of the model is kept: {of_whole(share)} of its parameters")
        cost = share, self.units.bytes(names, None if low is None else low.itemsize)
        return Kept(
            names, error, self.runs, low, *self._ran.get(names, ((), ())), *cost, tuple(self.curve(base)), tuple(notes),
            widest(self._subject.model),
        )  # fmt: skip

    def _of_batch(self) -> float:
        """The error that a batch in the low dtype adds, and no layer takes back."""
        error = self.batch()
        return math.sqrt(max(0.0, self._found.error**2 - error**2)) if error is not None else 0.0

    def curve(self, base: float) -> list[tuple[float, float]]:
        """Shares of the parameters, and the errors that are expected of keeping them, or were measured."""
        first, balance, facts = self._stage.names, self._stage.balance, self.facts()
        expected = self._expected(base)
        steps = list(balance.steps(first))
        steps = [*steps[: -1 : max(1, math.ceil(len(steps) / _CURVE))], *steps[-1:]]
        points = [(self.units.share(names), error) for names, error in facts.items() if math.isfinite(error)]
        points += [(self.units.share(first), base)] * (first not in facts)
        if not self._stages[0].names:
            points.append((0.0, self._found.error))
        for names, rest in steps:
            if self.units.closed(names) not in facts:
                points.append((self.units.share(names), expected.error(rest)))
        return list(_falling(points))


def _falling(points: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Those points of a curve that have less error than all with less."""
    least = math.inf
    for share, error in sorted(points):
        if error < least:
            least = error
            yield share, error
