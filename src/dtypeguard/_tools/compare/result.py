"""What `compare` found: to print, to keep, and to ask what must stay in float32."""

import functools
import heapq
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from ..._core.base.dtypes import HALF, name_of
from ..._core.base.errors import CompareError
from ..._core.base.options import explained_as, share_of
from ..._core.base.progress import task
from ..._engine.watch.unrecorded import unrecorded
from ..._show.result import Drawn, Row
from ..._show.svg import Chart
from ..._show.text import cut, percent, titled, wrapped
from .keep import Search
from .kept import Kept
from .measure import DECIDED, INPUTS, Measured, Part
from .pictures import of_comparison
from .subject import Subject, widest
from .text import COLUMNS, LARGE, bars, grouped, site_of
from .trials import output_error

_SHOWN = 8  # layers of a printed comparison
_LEAST = 0.005  # a share below is printed as 0
_GROWS = 1.5
# The model's error in its own dtype is noted from 1e-3 and 10 % of the low dtype's error on.
_OWN, _OWN_SHARE = 1e-3, 0.1
_ALIKE = 0.5  # of what another layer saves
_CUT = 24  # letters of a layer's name in the row of another
_FAST = 0.05  # of the error, by which that on a fast path is another one
_CANCEL, _CHANCE = 2.0, 10.0  # times what shares explain, from which on they are said to cancel, or to say nothing


@dataclass(frozen=True, slots=True)
class Layer(Row):
    """The share of one module in the error: of what it computes itself, and of its own parameters.

    Attributes:
        name: dotted, as in `named_modules()`; `""` is the model itself, `(inputs)` the rounding of the batch.
        share: its share of the error of the outputs, 1.0 = all; negative if it takes away from the error; None if there
            are no shares.
        weights: the part that comes from storing or casting parameters to the low dtype.
        arithmetic: the part that comes from computing in it.
        decisions: the part that comes from choices (argmax, topk, comparisons) that come out otherwise.
        saves: how much of the error² keeping the module in float32 would save; expected from the shares, or measured.
            None for a module that cannot be kept, and for one that has such modules in it.
        measured: whether `saves` was measured, by a run with the module in float32: of the layers that shares put
            first, and where they do not explain the error of those that bisection reaches.
        error: the error of the module's output, relative to its output in the wider dtype; None if it returns no
            floating tensor.
        kind: the name of its class.
        lines: where it computes, as `file:line`, the line with the largest share first.
        alone: in a format, the error that this module alone would make; else None.
        through: the layer whose error is nearly all of what this one saves, as that one computes in float32 too when it
            gets a float32 result; else "".
    """

    name: str
    share: float | None
    weights: float
    arithmetic: float
    decisions: float
    saves: float | None
    error: float | None
    kind: str
    lines: tuple[str, ...] = ()
    measured: bool = False
    alone: float | None = None
    through: str = ""


@dataclass(frozen=True, slots=True)
class Line(Row):
    """The share of one line of the program in the error.

    Attributes:
        file: where it is.
        line: its number.
        source: its text.
        share: its share of the error of the outputs, 1.0 = all.
        weights: the part of parameters, as that of a `Layer`.
        arithmetic: the part of operations.
        decisions: the part of choices.
        layers: the names of the modules that run it.
    """

    file: str
    line: int
    source: str
    share: float
    weights: float
    arithmetic: float
    decisions: float
    layers: tuple[str, ...]

    @property
    def site(self) -> str:
        """The file, from the working directory, and the line."""
        return site_of(self.file, self.line)


class Comparison(Drawn):
    """What a lower precision costs a model.

    Attributes:
        error (float): ‖low - reference‖ / ‖reference‖ over all floating outputs; inf if values are lost; for outputs of
            integers the share of values that differ.
        compared ("loss" | "output"): what has this error: the loss, if one was passed, else the outputs.
        explained (float | None): the sum of the shares, 1.0 = all of the error; None if there are no shares.
        linear (bool): whether shares tell what layers save: they explain 0.9 to 1.1 of the error, and choices less than
            0.1.
        layers (list[Layer]): one `Layer` for each module, first the one that saves most if it is kept, but after the
            layer whose error that is (`through`); where `saves` is None, the share counts.
        lines (list[Line]): one `Line` for each line, the largest share first.
        parameters (dict[str, float]): the share of each parameter that is stored in the low dtype, by its name.
        curve (list[tuple[float, float]]): pairs of a share of the parameters in float32 and the error that is expected
            of it, or was measured, from nothing to all that helps; empty if the shares do not tell it. After `keep` it
            is that of what is kept.
        depth (list[str]): the names of the modules that return floating tensors, in the order in which they return.
        reference (torch.dtype): the dtype of the reference.
        runs (int): how often the model has run, forward, in any dtype.
        bisected (int): how many of these runs measured what keeping layers saves; 0 if the shares tell it.
        born (tuple[str, ...]): where values become infinite or NaN, as `audit(values=True)` says it; empty if they do
            not.
        notes (list[str]): what limits the result.
    """

    kind = "compare"
    arithmetic: ClassVar[str] = "arithmetic"  # what the part of operations is called

    def __init__(self, subject: Subject, found: Measured, born: tuple[str, ...]) -> None:
        self._subject, self._found = subject, found
        self._kept: Kept | None = None
        self.error: float = found.error
        self.compared: Literal["loss", "output"] = "output" if subject.loss is None else "loss"
        self.reference: torch.dtype = subject.precision
        self.born: tuple[str, ...] = born
        self.explained: float | None = found.explained
        self.linear: bool = found.linear
        self.bisected: int = 0
        measured: dict[str, float] = {}
        search = self._search if found.error and not found.spoilt and not found.integers else None
        if search is not None and self.linear:
            measured = search.lead() | search.inputs()
        elif search is not None and len(search.leaves) > 1:
            measured, self.bisected = search.bisected(search.leaves, search.suspects())
            search.reorder(measured)
        self._fast = 0.0 if found.integers else output_error(subject, subject.fast_outputs())
        self.layers: list[Layer] = list(_layers(found, search, measured, self.linear))
        self.lines: list[Line] = list(_lines(found))
        self.parameters: dict[str, float] = dict(sorted(found.parameters.items(), key=lambda item: -abs(item[1])))
        self.depth: list[str] = [name for name, course in found.courses.items() if course.size or course.lost]
        self.notes: list[str] = list(self._notes())

    @property
    def runs(self) -> int:
        return self._subject.runs

    @property
    def curve(self) -> list[tuple[float, float]]:
        """Shares of the parameters in float32, and the errors that shares expect of them; empty if they do not tell."""
        if self._kept is not None:
            return list(self._kept.curve)
        return self._search.curve(self.error) if self.linear and math.isfinite(self.error) else []

    @functools.cached_property
    def _search(self) -> Search:
        return Search(self._subject, self._found)

    @explained_as("keep", bits="goes with formats: compare(model, batch, format=...).keep(bits=6.5)")
    @unrecorded
    def keep(self, error: float | str) -> Kept:
        """Find modules that must stay in float32 for the outputs to have at most this error: those with few parameters.

        The shares tell where to look, and the model is run with these modules in float32, at most 5 times; it gets the
        batch in the dtype in which it was passed. Where the error is not linear, what was run tells where to look, and
        it takes at most 16 runs, and so it does where a tenth of the parameters would be kept, or more: what is not
        needed of them is left out. The returned choice was verified by a run.

        Args:
            error: the largest that is wanted, relative to the outputs' norm: 0.01 is one percent, as is "1%".

        Returns:
            The modules, and the error that is left.

        Raises:
            TypeError, ValueError: if the error is no number, not positive, or 1 or more where the low dtype has
                less: "1%" is one percent.
            CompareError: if there are no outputs to measure an error of, if not even the whole model in float32
                reaches it, if it is the batch that has the error, or if the model has changed since.

        >>> import torch, dtypeguard
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
        >>> result = dtypeguard.compare(model, torch.randn(4, 8), dtype=torch.bfloat16)
        >>> kept = result.keep(error=1e-6)
        >>> kept.error < 1e-6, kept.runs <= 5
        (True, True)
        """
        error = share_of("keep: error", error)
        if error >= 1 and not error < self.error < math.inf:  # so have outputs that are all 0
            raise ValueError(
                f"keep(error={error:g}) is {percent(error)}, no goal: did you mean '{error:g}%'? With nothing kept "
                f"the error is {percent(self.error)}"
            )
        self._check_kept("pass compare a loss=, a function that makes a floating tensor of what the model returns")
        with torch.inference_mode(False), task("keep"):
            kept = self._search.anew().run(error)
        if kept is None:
            raise CompareError(
                f"keep(error={error:.3g}) cannot be reached: the whole model in {self.wide} has an error of "
                f"{percent(self._found.own)} against {name_of(self.reference)}"
            )
        self._kept = kept
        return kept

    def _check_kept(self, advice: str) -> None:
        """Raises CompareError if there is nothing to measure an error of, or the model is another one by now."""
        if self._found.integers:
            why = "keep needs floating outputs to measure an error of, and the model returns integers"
            raise CompareError(f"{why}: {advice}")
        self._subject.check_unchanged()

    # ------------------------------------------------------------ to read

    @property
    def wide(self) -> str:
        """The name of the dtype that the model has."""
        return name_of(widest(self._subject.model))

    @property
    def title(self) -> str:
        """What is compared with what: `bfloat16 against float64`."""
        return f"{self._subject.title} against {name_of(self.reference)}"

    def verdict(self) -> str:
        """The first line of the report, without the dtypes."""
        if self._found.integers:
            return f"{percent(self.error)} of the outputs' integers differ"
        said = "outputs are not finite" if math.isinf(self.error) else f"{self.compared} error {percent(self.error)}"
        if self.explained is not None:
            said += f", explained {percent(self.explained)}"
        first = next((name for name in self.depth if name and self._found.courses[name].error > LARGE), None)
        return said if first is None else f"{said}, first above 1 % at {first}"

    def _cancels(self, times: float) -> bool:
        """Whether shares cancel so much that they are this often what they explain."""
        return sum(abs(layer.share or 0) for layer in self.layers) > times * max(self.explained or 0, 1)

    def _notes(self) -> Iterator[str]:
        found = self._found
        measured = f"; what keeping a layer saves was measured by {self.bisected} runs" if self.bisected else ""
        if (given := widest(self._subject.model)) in HALF:
            yield f"the model is in {name_of(given)} already: pass it as it was in float32, as digits are lost by now"
        if not found.shared and found.error and not found.lost:
            why = "and the outputs have none"
            if found.overflown or found.overflows:
                why = "and it is not finite"
            elif found.refused:
                why = f"and autograd refuses it ({found.refused})"
            yield f"no shares: they need a gradient, {why}{measured}"
        if self.explained is not None and not self.linear:
            why = f"the shares explain {percent(self.explained)} of the error"
            if found.decided >= DECIDED:
                why = f"choices make {percent(found.decided)} of the error"
            yield f"not linear: {why}{measured}"
        if self._cancels(_CHANCE):
            yield (
                "layers add to the error and take from it more than ten times what is left, so which of them it comes "
                f"from is chance: pass more batches{', or compare the outputs' * (self.compared == 'loss')}"
            )
        elif self._cancels(_CANCEL):
            yield "errors of layers cancel: more batches make the shares steadier"
        if found.left_out:
            yield f"{found.left_out:,} of {found.values:,} values are not finite in the reference, and were left out"
        if not found.integers and found.own > max(_OWN, _OWN_SHARE * found.error):
            yield (
                f"{self.wide} itself is {percent(found.own)} from {name_of(self.reference)}: the model is another "
                "program there, or loses digits in any dtype; look at audit(values=True)"
            )
        if self._fast and abs(self._fast - self.error) > _FAST * self.error:
            yield (
                f"without gradients PyTorch's encoder layers take a fast path, and the error is {percent(self._fast)}: "
                "torch.backends.mha.set_fastpath_enabled(False) turns it off"
            )
        if self._subject.apart is not None:
            yield (
                f"the reference is {name_of(self.reference)}: in float64 the model is another program, "
                f"{percent(self._subject.apart)} from this, as choices come out otherwise or digits are lost; look at "
                "audit(values=True)"
            )
        elif self.reference is torch.float32:
            yield "the reference is float32: an operation of the model refuses float64"
        if found.opaque:
            names = ", ".join(name for name, _ in found.opaque.most_common(3))
            yield f"{sum(found.opaque.values())} of {found.operations} operations have no share: {names}"
        if not all(draws.same for draws in self._subject.draws):
            yield "the runs drew random numbers at different places, so they differ by these too"
        if found.flipped:
            row = max(found.flipped, key=lambda one: found.flipped[one])
            count = sum(found.flipped.values())
            yield f"{count} choice{'s' * (count > 1)} come{'s' * (count == 1)} out otherwise, most at {row}"

    def _kept_lines(self) -> Iterator[str]:
        """The lines behind the notes: what is kept."""
        if self._kept is not None:
            yield from self._kept.told(self._found.modules, self._subject.title)

    def __str__(self) -> str:
        return "\n".join(_report_lines(self))

    def __repr__(self) -> str:
        return f"<Comparison {self.title}: {self.verdict()}>"

    def _data(self) -> dict[str, Any]:
        found, kept = self._found, self._kept
        return {
            "dtype": self._subject.dtype,
            "region": self._subject.region,
            "model": type(self._subject.model).__name__,
            "reference": self.reference,
            "wide": self.wide,
            "verdict": self.verdict(),
            "compared": self.compared,
            "integers": found.integers,
            "error": self.error,
            "explained": self.explained,
            "linear": self.linear,
            "runs": self.runs,
            "bisected": self.bisected,
            "born": self.born,
            "notes": self.notes,
            "layers": self.layers,
            "lines": self.lines,
            "parts": [_part(part) for part in found.parts.values() if part.site is not None],
            "parameters": self.parameters,
            "depth": [{"name": name, "error": found.courses[name].error} for name in self.depth],
            "curve": self.curve,
            "kept": None if kept is None else kept._data(),
        }

    def _page(self) -> str:
        from .page import render

        return render(self.to_dict())

    def _picture(self) -> Chart:
        return of_comparison(self.to_dict())

    def _cell(self) -> tuple[Any, ...]:
        from .page import parts_of

        return parts_of(self.to_dict(), self.title)


def _layers(
    found: Measured, search: Search | None, measured: Mapping[str, float], linear: bool
) -> Iterator[Layer]:  # fmt: skip
    parts = {name: list[Part]() for name in found.courses}
    parts |= grouped((part.module, part) for part in found.parts.values())
    rows, leaves = [], set() if search is None else set(search.leaves)
    for name, own in parts.items():
        course = found.courses.get(name)
        sums = _sum(own)
        share = sum(sums) if found.shared else None
        saves = measured.get(name)
        if saves is None and linear and search is not None and name in leaves:
            saves = min(search.saved(name), 1.0)  # shares that cancel, or that runs have corrected, add up to more
        own = sorted(own, key=lambda part: -abs(part.share))
        lines = dict.fromkeys(site_of(*part.site.key) for part in own if part.site is not None)
        kind = "" if name == INPUTS else type(found.modules[name]).__name__
        error = course.error if course is not None and (course.size or course.lost) else None
        alone = found.alone.get(name)
        through = search.through(name) if search is not None and saves else ""
        rows.append(Layer(name, share, *sums, saves, error, kind, tuple(lines), name in measured, alone, through))
    ranks = {row.name: _rank(row) for row in rows}
    yield from sorted(rows, key=lambda row: _place_of(row, ranks))


def _place_of(row: Layer, ranks: Mapping[str, float]) -> tuple[float, bool, float]:
    """A layer that saves another one's error comes after that, unless it saves much more."""
    rank, cause = ranks[row.name], ranks.get(row.through, 0.0) if row.through else 0.0
    return (-min(rank, cause), True, 0.0) if cause > _ALIKE * rank else (-rank, False, -abs(row.share or 0))


def _rank(row: Layer) -> float:
    if row.share is None:
        return row.error or 0.0
    return abs(row.share) if row.saves is None else row.saves


def _lines(found: Measured) -> Iterator[Line]:
    parts = grouped((part.site.key, part) for part in found.parts.values() if part.site is not None)
    rows = []
    for (file, number), own in parts.items():
        sums, site = _sum(own), own[0].site
        layers = tuple(dict.fromkeys(part.module for part in own))
        rows.append(Line(file, number, site.source if site else "", sum(sums), *sums, layers))
    yield from sorted(rows, key=lambda row: -abs(row.share))


def _part(part: Part) -> dict[str, Any]:
    """The share of one line of one module."""
    assert part.site is not None
    return {
        "layer": part.module, "file": part.site.file, "line": part.site.line, "source": part.site.source,
        "weights": part.weights, "arithmetic": part.arithmetic, "decisions": part.decisions,
    }  # fmt: skip


def _sum(parts: Iterable[Part]) -> tuple[float, float, float]:
    parts = list(parts)
    return (
        sum(part.weights for part in parts), sum(part.arithmetic for part in parts),
        sum(part.decisions for part in parts),
    )  # fmt: skip


def _report_lines(result: Comparison) -> Iterator[str]:
    yield from wrapped(f"{result.title}: {result.verdict()}")
    for line in result.born:
        yield from wrapped(f"  {line}")
    if not result._cancels(_CHANCE):
        yield from _rows(result) if result.explained is not None else _curve(result)
    for line in (*(f"note: {note}" for note in result.notes), *result._kept_lines()):
        yield from wrapped(line)


def _rows(result: Comparison) -> Iterator[str]:
    weights = {layer.name: max(abs(layer.share or 0), layer.saves or 0) for layer in result.layers}
    large = heapq.nlargest(_SHOWN, weights, key=weights.__getitem__)
    shown = [layer for layer in result.layers if layer.name in large and weights[layer.name] >= _LEAST]
    told = [("saves", "share", "", "", "")]
    for layer in shown:
        saved = _share(layer.saves) if layer.saves and math.isfinite(layer.saves) else ""  # kept alone
        place = layer.lines[0].rpartition(os.sep)[2] if layer.lines else ""
        told.append((saved, _share(layer.share), titled(layer.name), _parts(layer, result.arithmetic), place))
    saves, share_width, names = (max(len(row[n]) for row in told) for n in range(3))
    left = COLUMNS - saves - share_width - names - 10
    parts = max((len(row[3]) for row in told if len(row[3] + row[4]) <= left), default=0)
    what = f"of the error²: if kept in {result.wide}; what it makes itself"
    yield f"  {'saves':>{saves}}  {'share':>{share_width}}  {what}"
    for saved, share, name, of, where in told[1:]:
        room = left - len(where)  # a name that can be pasted is worth more than a line, which `lines` has
        named = f"{name:<{names}}  {of:<{min(parts, max(room, 0))}}  {where if len(of) <= room else ''}"
        yield f"  {saved:>{saves}}  {share:>{share_width}}  {named}".rstrip()
    others = len(result.layers) - len(shown)
    if others:
        rest = sum(layer.share or 0 for layer in result.layers) - sum(layer.share or 0 for layer in shown)
        yield f"  {'':>{saves}}  {_share(rest):>{share_width}}  {others} other layer{'s' * (others > 1)}"


def _curve(result: Comparison) -> Iterator[str]:
    """How the error grows, where there are no shares: the modules at which it is half as large again as before."""
    errors = {layer.name: layer.error for layer in result.layers}
    before, shown = 0.0, []
    for name in result.depth:
        error = errors.get(name)
        if error is not None and (error > _GROWS * before or (math.isinf(error) and not math.isinf(before))):
            shown.append((name, error))
            before = error
    drawn = bars([error for _, error in shown[:_SHOWN]])
    width = max(map(len, drawn), default=0)
    room = max(7, *(len(percent(error)) for _, error in shown[:_SHOWN]), 0)
    for (name, error), bar in zip(shown, drawn, strict=False):
        yield f"  {percent(error):>{room}}  {bar:<{width}}  after {cut(titled(name), COLUMNS - 12 - room - width)}"


def _share(share: float | None) -> str:
    return f"{round(100 * (share or 0))} %"


def _parts(layer: Layer, arithmetic: str) -> str:
    parts = {"weights": layer.weights, arithmetic: layer.arithmetic, "decisions": layer.decisions}
    told = [f"{name} {round(100 * value)}" for name, value in parts.items() if abs(value) >= _LEAST]
    if layer.through and (layer.saves or 0) >= _LEAST:
        told.append(f"saves in {cut(titled(layer.through), _CUT)}")
    return ", ".join(told)


for _public in (Comparison, Layer, Line, Kept):
    _public.__module__ = "dtypeguard.results"
