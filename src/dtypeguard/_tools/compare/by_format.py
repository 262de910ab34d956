"""What formats of 8 and 4 bits cost a model: a comparison that knows which layers stay, and finds each a format."""

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import nn

from ..._core.base.dtypes import name_of
from ..._core.base.errors import CompareError
from ..._core.base.options import explained, positive, share_of
from ..._core.base.progress import task
from ..._engine.watch.unrecorded import unrecorded
from ..._show.svg import Chart
from ..._show.text import percent
from ..formats.table import Format
from .formatted import Formatted, reasons
from .gradients import gradients_of
from .keep import Search
from .measure import Measured, measure
from .mixing import Choice, Option, choices
from .pictures import of_formats
from .placed import Placed
from .result import Comparison
from .trials import output_error

RUNS = 5
_RUNS_OF_BITS = 8
_CAUTION = 1.2  # with each run that has failed, of the square of the error
_CURVE = 40  # points
_MOST = 3  # parameters in a line
_LIKELY = 2.0  # of the error²: what is that much worse in theory is hardly better in a run
_LEAST = 1e-9  # of the error²: nothing but the model itself makes none of it


class FormatSearch(Search):
    """What keeping modules out of a format saves."""

    _subject: Formatted

    def __init__(self, subject: Formatted, found: Measured) -> None:
        self.must: frozenset[str] = frozenset()  # modules that lose values
        self.found = found  # what was measured; where values are lost, with these modules kept
        self._saved: dict[str, float] = {}
        super().__init__(subject, found)
        # The modules with products, in the order of their calls.
        self.leaves = [name for name in subject.weights if name in self.units.names]

    def _finite(self, found: Measured) -> tuple[tuple[str, ...], Measured]:
        self.must = frozenset(found.beyond)
        with self._subject.rounding(self._without(self.must)):
            self.found = measure(self._subject, self._subject.lowered)
        return (), self.found

    def _without(self, names: Iterable[str]) -> dict[str, Format]:
        kept, every = {*names}, self._subject.assigned(self._subject.formats[0])
        return {name: to for name, to in every.items() if name not in kept}

    def saved(self, name: str) -> float:
        if self._saved:
            return self._saved.get(name, 0.0)
        share = sum(part.share for part in self.found.parts.values() if part.module == name)
        alone, error = self.found.alone.get(name), self.found.error
        return share if alone is None or not error else (share + (alone / error) ** 2) / 2

    def suspects(self, stage: object = None) -> list[str]:
        return []

    def through(self, name: str) -> str:
        return ""  # results are not wider

    def reorder(self, saved: dict[str, float]) -> None:
        """What was measured; what is left is that of all others, as one."""
        others = [name for name in self.leaves if name not in saved]
        rest = max(1 - sum(saved.values()), 0.0) / max(len(others), 1)
        self._saved = {**dict.fromkeys(others, rest), **saved}

    def trial(self, names: Iterable[str]) -> float:
        return self._error(tuple(names), as_given=False)

    def _by_chance(self, name: str, saved: float, expected: float) -> bool:
        return False  # roundings to few digits do not fall otherwise so soon

    def _measured(self, names: tuple[str, ...], as_given: bool, draw: int = 0) -> float:
        return error_with(self._subject, self._without(names))


def error_with(subject: Formatted, assigned: Mapping[str, Format]) -> float:
    """The error of the outputs with these formats, by modules."""
    with subject.rounding(assigned):
        return output_error(subject, subject.low_outputs(subject.copy(), subject.dtype))


class FormatComparison(Comparison):
    """What a format of 8 or 4 bits costs a model; of several, the first.

    Attributes:
        by_format (dict[str, FormatComparison]): a comparison for each format, by its name.
        stays (dict[str, str]): why modules with matrix products are not in the format, by their names.
        gradients (dict[str, float] | None): the error of each parameter's gradient, by its name, the largest first;
            None without `loss=`.
        gradient (float | None): that of all of them as one vector; None without `loss=`.
    """

    kind = "compare"
    arithmetic = "activations"
    _subject: Formatted

    def __init__(self, subject: Formatted, found: Measured, others: Iterable["FormatComparison"] = ()) -> None:
        gradients = gradients_of(subject, subject.assigned(subject.formats[0]))
        self.gradients: dict[str, float] | None = None if gradients is None else gradients.errors
        self.gradient: float | None = None if gradients is None else gradients.error
        self._placed: Placed | None = None
        self._front: list[Choice] | None = None
        self._ran: list[tuple[Choice, float]] = []
        self.by_format: dict[str, FormatComparison] = {subject.title: self}
        self.by_format |= {other._subject.title: other for other in others}
        self.stays: dict[str, str] = subject.refusals(subject.formats[0])
        super().__init__(subject, found, ())
        self.compared: Literal["loss", "output"] = "output"  # gradients have the errors of the loss

    @property
    def curve(self) -> list[tuple[float, float]]:
        return []  # a format is not against a share but against bits: see `Placed`

    @property
    def wide(self) -> str:
        return name_of(self._subject.given)

    def _data(self) -> dict[str, Any]:
        others = {title: other for title, other in self.by_format.items() if other is not self}
        return super()._data() | {
            "format": self._subject.title,
            "arithmetic": self.arithmetic,
            "attention": self._subject.attention,
            "stays": dict(self.stays),
            "gradient": self.gradient,
            "gradients": self.gradients,
            "by_format": {title: other._data() for title, other in others.items()},
            "placed": None if self._placed is None else self._placed._data(),
        }

    def _picture(self) -> Chart:
        return of_formats(self.to_dict())

    def _cell(self) -> tuple[Any, ...]:
        from .formats_page import parts_of_formats
        from .page import parts_of

        data = self.to_dict()
        return *parts_of(data, self.title), *parts_of_formats(data)

    def _notes(self) -> Iterator[str]:
        yield from (f"left out: {why}" for why in self._subject.impossible.values())
        yield from super()._notes()

    def _kept_lines(self) -> Iterator[str]:
        """Other formats, what stays, gradients, and what was chosen."""
        for title, other in self.by_format.items():
            if other is not self:
                yield f"{title}: {other.verdict()}"
        nowhere = self._unplaced()
        for reason in reasons(nowhere, self._subject.weights):
            yield f"stays in {self.wide}: {reason}"
        for title, other in self.by_format.items():  # another one takes it
            own = {name: why for name, why in other.stays.items() if name not in nowhere}
            for reason in reasons(own, self._subject.weights):
                yield f"not in {title}: {reason}"
        if self.gradients is not None and self.gradient is not None:
            most = ", ".join(f"{name} {percent(error)}" for name, error in [*self.gradients.items()][:_MOST])
            yield f"gradients: error {percent(self.gradient)}; of single parameters: {most}"
        if self._placed is not None:
            yield from self._placed.told(self._subject.weights)

    def _unplaced(self) -> dict[str, str]:
        """The modules that no format takes, each with the reason of the first."""
        every = self.by_format.values()
        return {name: why for name, why in self.stays.items() if all(name in one.stays for one in every)}

    @functools.cached_property
    def _search(self) -> FormatSearch:
        return FormatSearch(self._subject, self._found)

    @explained
    @unrecorded
    def keep(self, error: float | str | None = None, *, bits: float | None = None) -> Placed:  # type: ignore[override]
        """Find a format for each layer: with this error at most and as few bits as may be, or the best of so many bits.

        Shares tell where to look, and the model is run with what was chosen and what is nearly as good by them: at most
        5 times for an error, 8 times for bits. Layers that go to no
        format stay in the model's own dtype.

        Args:
            error: the largest error of the outputs: 0.01 is one percent, as is "1%".
            bits: the most bits that a weight of a matrix product may have on average, with the scales; layers that no
                format takes count too.

        Raises:
            ValueError: if the error is not positive, or no choice has so few bits.
            TypeError: if both are given, or none.
            CompareError: if there are no outputs to measure an error of, or the model has changed since.

        >>> import torch, dtypeguard
        >>> model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32))
        >>> result = dtypeguard.compare(model, torch.randn(8, 32), format=("mxfp4", "mxfp8"))
        >>> kept = result.keep(bits=6.5)
        >>> kept.bits <= 6.5, sorted(kept.formats.values())
        (True, ['mxfp4', 'mxfp8'])
        """
        if (error is None) == (bits is None):
            given = "neither" if error is None else "both"
            raise TypeError(f"keep takes error= or bits=, and got {given}: for example keep(error=0.01)")
        error = None if error is None else share_of("keep: error", error)
        bits = None if bits is None else positive("keep: bits", bits, "6.5")
        self._check_kept("compare the part of it that comes before")
        with torch.inference_mode(False), task("keep"):
            self._placed = self._choose(error, bits)
        return self._placed

    def _choose(self, error: float | None, bits: float | None) -> Placed:
        subject, count = self._subject, sum(held.count for held in self._subject.weights.values())
        front = self._front = self._front or choices(self._options())
        if bits is not None and front[0].cost > bits * count:
            stays = self._unplaced()
            names = ", ".join(reasons(stays, subject.weights))
            stay = f", as no format takes {names}" if names else ""
            raise ValueError(f"keep(bits={bits:g}): the cheapest choice has {front[0].cost / count:.3g} bits{stay}")
        curve = [(one.cost / count, one.damage) for one in front]
        if bits is not None:
            why = f"bits={bits:g} lets all stay in {self.wide}; ask for fewer"
            return self._placed_as(*self._best_of(front, bits * count), count, curve, why)
        assert error is not None
        slack, best, reached, runs, found = 1.0, None, math.inf, 0, math.inf
        while runs < RUNS:
            level = 0.0 if runs == RUNS - 1 and best is None else error**2 / slack
            chosen = next(one for one in front if one.damage <= level)
            if best is not None and chosen.cost >= best.cost:
                break
            runs += 1
            found = error_with(subject, self._assigned(chosen))
            if found <= error:
                best, reached = chosen, found
            slack = found**2 / chosen.damage if chosen.damage and math.isfinite(found) else 2 * slack
            if best is None:
                slack *= _CAUTION**runs
        if best is None:
            attention = f", as attention is in {subject.title}"
            rest = attention if subject.attention else f" against {name_of(self.reference)}"
            raise CompareError(
                f"keep(error={error:g}) cannot be reached: with all layers in {self.wide} the error is "
                f"{percent(found)}{rest}"
            )
        why = f"only with all in {self.wide} is the error reached"
        return self._placed_as(best, reached, runs, count, curve, why)

    def _best_of(self, front: list[Choice], most: float) -> tuple[Choice, float, int]:
        """The choice that is best in runs, its error, and how many were run.

        Errors of layers may take each other back: what is nearly as good in theory is run too, and one format for all.
        """
        first = [one for one in front if one.cost <= most][-1]
        queue = [first, *[one for one in map(self._all_in, self.by_format) if one.cost <= most]]
        reached = math.inf
        tried: list[Mapping[str, str | None]] = []
        while queue and len(tried) < _RUNS_OF_BITS:
            chosen = queue.pop(0)
            if chosen.formats in tried:
                continue
            tried.append(chosen.formats)
            error = error_with(self._subject, self._assigned(chosen))
            self._ran.append((chosen, error))
            if error < reached:
                reached = error
                near = chosen.near(self._options(), most)
                queue += [one for one in near if one.damage <= _LIKELY * first.damage]
        best, error = min(((one, error) for one, error in self._ran if one.cost <= most), key=lambda pair: pair[1])
        return best, error, len(tried)  # of calls before, too: more bits are no worse

    def _all_in(self, title: str) -> Choice:
        """One format for all layers that it takes."""
        every = self._options().items()
        each = {name: next((one for one in several if one.format == title), several[0]) for name, several in every}
        return Choice(sum(one.cost for one in each.values()), sum(one.damage for one in each.values()), lambda: each)

    def _options(self) -> dict[str, list[Option]]:
        """For each layer, the formats that take it, and the model's own dtype."""
        width, weights = self._subject.width, self._subject.weights
        options = {name: [Option(None, width * held.count, 0.0)] for name, held in weights.items()}
        for title, result in self.by_format.items():
            to, search = result._subject.formats[0], result._search
            for name in result._subject.assigned(to):
                damage = search.found.alone[name] ** 2
                if name in search.must or not math.isfinite(search.found.error):
                    damage = math.inf
                elif not search.found.linear:
                    damage = max(search.saved(name), _LEAST) * search.found.error**2
                options[name].append(Option(title, to.bits * weights[name].count, damage))
        return options

    def _assigned(self, chosen: Choice) -> dict[str, Format]:
        rows = {title: result._subject.formats[0] for title, result in self.by_format.items()}
        return {name: rows[title] for name, title in chosen.formats.items() if title is not None}

    def _placed_as(
        self, chosen: Choice, error: float, runs: int, count: int, curve: list[tuple[float, float]], why: str
    ) -> Placed:  # fmt: skip
        """The result; where no layer goes to a format it says `why`."""
        assigned = self._assigned(chosen)
        gradients = gradients_of(self._subject, assigned)
        shown = [*curve[: -1 : max(1, len(curve) // _CURVE)], curve[-1]]
        kinds = {name: type(self._found.modules[name]) for name in assigned}
        return Placed(
            names=tuple(name for name in self._subject.weights if name not in assigned),
            formats={name: to.name for name, to in assigned.items()},
            error=error, runs=runs, bits=chosen.cost / max(count, 1),
            gradient=None if gradients is None else gradients.error,
            attention=self._subject.title if self._subject.attention else None,
            stays=self._unplaced(),
            curve=tuple((bits, math.sqrt(damage)) for bits, damage in shown),
            notes=() if assigned else (f"no layer goes to a format: {why}",),
            others={name: kind.__name__ for name, kind in kinds.items() if not issubclass(kind, nn.Linear)},
            wide=self.wide,
        )  # fmt: skip


def in_formats(subject: Formatted, found: Measured) -> FormatComparison:
    """The comparison of the first format, which holds those of the others."""
    others = [FormatComparison(one, measure(one, one.lowered)) for one in map(subject.of, subject.formats[1:])]
    first = subject.of(subject.formats[0])
    first.runs, first.impossible = subject.runs, subject.impossible
    return FormatComparison(first, found, others)


FormatComparison.__module__ = Placed.__module__ = "dtypeguard.results"
