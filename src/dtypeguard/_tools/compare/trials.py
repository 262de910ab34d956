"""Runs of a model with some modules in float32: the errors that are left, and what has to be cast for them to run."""

import functools
import math
import operator
import statistics
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from .borders import keep_wide
from .measure import Measured, distance
from .reach import Modules
from .subject import REFUSALS, Subject
from .units import Units, in_any, within

Given = frozenset[int] | None  # which of the floating tensors of a batch come as they are; None for all

_REPAIRS = 8  # of one run that operations refuse
_SINGLE = 3  # results that are cast back one by one, before all are
_BISECTED = 16  # runs
_DRAWS = 6  # runs of one set of modules, in which roundings fall otherwise
_NUDGE = 1 / 16  # of a rounding: what it adds to the error is nothing beside it


class Trials:
    """What has been run."""

    def __init__(self, subject: Subject, found: Measured) -> None:
        self._subject, self._found = subject, found
        self.runs = 0  # how many sets of modules were run in this search
        self.units = Units(found.modules, found.courses, found.bits)  # the modules that can be kept
        self._errors: dict[tuple[tuple[str, ...], Given], float] = {}  # by names, and what came as given
        self._drawn: dict[tuple[tuple[str, ...], Given], list[float]] = {}  # the same, squared, of several runs
        self._told: list[str] = []  # of the compiled model
        self._tried: dict[tuple[str, ...], float] = {}  # the errors in this search
        self._as_given = True  # whether the program takes the batch as it was given
        self._cast: list[str] = []  # modules of which a run has shown that they refuse float32
        self._ran: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[str, ...]]] = {}  # what was cast in each run

    def trial(self, names: Iterable[str]) -> float:
        """The error with these modules, and those that share parameters with them, in float32, and the batch in the low
        dtype, unless one of them takes it.
        """
        return self._error(self.units.closed(names), as_given=False)

    def redrawn(self, names: Iterable[str], as_given: bool = False) -> list[float]:
        """The squared errors of several runs with these modules in float32, in which roundings fall otherwise.

        Where an error has few numbers that are free, one run may have half or twice the error of another one by chance:
        parameters that are changed by much less than a rounding show how much.
        """
        closed = self.units.closed(names)
        key = closed, self._given(closed, as_given)
        if key not in self._drawn:
            others = (self._measured(closed, as_given, draw) for draw in range(1, _DRAWS))
            self._drawn[key] = [error**2 for error in (self._error(closed, as_given), *others)]
        return self._drawn[key]

    def bisected(self, modules: list[str], first: Sequence[str]) -> tuple[dict[str, float], int]:
        """What keeping single modules saves of the error², and how many runs it took, where shares do not explain it.

        Half of the modules are really kept, at a time: the group that saves most is split first. Those of `first` are
        run by themselves before.
        """

        def saved_by(names: list[str]) -> float:
            return 1 - (self.trial(names) / self._found.error) ** 2

        saved = {name: saved_by([name]) for name in first}
        runs, waiting = len(saved), [(0.0, modules)]
        while waiting and runs < _BISECTED:
            most = max(waiting, key=lambda one: one[0])
            waiting.remove(most)
            group = most[1]
            middle = max(1, len(group) // 2)
            for half in (group[:middle], group[middle:]):
                if not half or runs >= _BISECTED or (len(half) == 1 and half[0] in saved):
                    continue
                runs += 1
                gain = saved_by(half)
                if len(half) == 1:
                    saved[half[0]] = gain
                else:
                    waiting.append((gain, half))
        return saved, runs

    def batch(self) -> float | None:
        """The error with no module in float32, and the batch as it is passed; None if one layer casts all of it."""
        leaves = self._bits(self.units.leaves)
        if self._subject.dtype is None or all(bits & leaves for bits in self._found.savings.taken.values()):
            return None
        error = self._error((), as_given=True)
        return error if self._as_given else None

    def facts(self) -> dict[tuple[str, ...], float]:
        """The errors that were measured, by modules: with the batch as it is passed, where both were."""
        order = sorted(self._errors.items(), key=lambda item: (item[0][1] is None) is self._as_given)
        return {names: error for (names, _), error in order}

    def _error(self, names: tuple[str, ...], as_given: bool) -> float:
        key = names, self._given(names, as_given)
        if key not in self._errors:
            self._errors[key] = self._measured(names, as_given)
        return self._errors[key]

    def _given(self, names: Iterable[str], as_given: bool) -> Given:
        """What a run gets as it was given: what one of these modules takes alone; or all, where nothing casts it."""
        if as_given or self._subject.dtype is None:
            return None
        kept = self._bits(names)
        taken = self._found.savings.taken
        given = frozenset(which for which, bits in taken.items() if bits & kept)
        return None if len(given) == len(taken) else given

    def _attempt(self, names: tuple[str, ...], target: float) -> float:
        self.runs += 1
        error = self._error(names, as_given=self._as_given)
        if error <= target and self._is_lucky(names, error):
            error = max(error, math.sqrt(statistics.fmean(self.redrawn(names, self._as_given))))
            self._errors[names, self._given(names, self._as_given)] = error
        self._tried[names] = error = max(error, self._compiled(names)) if error <= target else error
        return error

    def _is_lucky(self, names: tuple[str, ...], error: float) -> bool:
        """Whether an error is far less than shares expect."""
        return False

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

    def _before(self, at: str | None, refused: list[str], backs: list[str]) -> list[str]:
        """Of the modules whose results may have to be cast back, that before the one that has refused; or all."""
        order = list(self._found.modules)
        rest = [name for name in refused if name not in backs]
        before = [name for name in rest if at and order.index(name) < order.index(at) and not within(at, name)]
        return before[-1:] if before and len(backs) < _SINGLE else rest

    def uncast(self, names: tuple[str, ...]) -> bool:
        """Whether a run has shown that results need not be cast back which other sets of modules have to cast."""
        return not self._ran[names][0] and any(self._bits([name]) & self._found.savings.narrow for name in names)

    def _bits(self, names: Iterable[str]) -> int:
        return functools.reduce(operator.or_, (self._found.bits[name] for name in names), 0)

    def _measured(self, names: tuple[str, ...], as_given: bool, draw: int = 0) -> float:
        """The error with these modules in float32; inf if the model refuses to run so.

        A program may ask for the dtype of what it gets, so not all that becomes float32 is known before a run. Where an
        operation refuses it beside the low dtype, the module around it casts its inputs, and all of its class; or, if
        a kept module is in it, that one casts its result.
        """
        savings, backs = self._found.savings, list[str]()
        for _ in range(_REPAIRS + _SINGLE + 1):
            given = self._given(names, as_given)
            refused = [name for name in names if name and self._bits([name]) & savings.narrow]
            narrow = tuple(name for name in refused if name in backs)  # what takes a result may be kept, too
            # Not those that one of the modules is in, or around.
            cast = tuple(one for one in self._cast if not (in_any(one, names) or any(within(n, one) for n in names)))
            self._ran[names] = narrow, cast
            model = self._subject.copy()
            if draw:
                _nudge(model, _NUDGE * torch.finfo(self._subject.low).eps, draw)
            keep_wide(model, names, narrow, self._subject.dtype, cast)
            stack = Modules(model, doors=False)
            try:
                dtype = None if given is None else self._subject.dtype
                return output_error(self._subject, self._subject.low_outputs(model, dtype, given or frozenset()))
            except REFUSALS:
                at = stack.refused
            finally:
                stack.remove()
            if len(narrow) < len(refused):
                backs += self._before(at, refused, backs)
                continue
            if as_given:
                as_given, self._as_given, backs = False, False, []
                continue
            inner = [name for name in names if at and within(name, at)]
            if at and not inner and at not in self._cast:
                kind = type(self._found.modules[at])
                self._cast += [name for name, module in self._found.modules.items() if type(module) is kind]
            elif set(inner or names) <= set(narrow):
                break
            else:
                savings.taken = dict.fromkeys(savings.taken, self._bits([""]))
                savings.narrow |= self._bits(inner or names)
        return math.inf


def _nudge(model: nn.Module, by: float, seed: int) -> None:
    """Change each parameter by less than a share of its size."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and not parameter.is_inference():
                noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float32)
                parameter.mul_(1 + by * (2 * noise - 1).to(parameter.device, parameter.dtype))


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
