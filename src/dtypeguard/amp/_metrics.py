"""Numbers of a watched run: what they are called, what makes them, how those of several ranks become one.

Elements are compared before and after a step on the device; nothing waits for it until somebody asks for the numbers.
"""

import bisect
import itertools
import math
import re
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .._core.base.dtypes import name_of
from .._core.repair.records import CastRecord, mark, since
from ._optimizer import WatchedOptimizer
from ._scaling import Scaling
from ._tensors import sample

PREFIX = "dtypeguard/"
HISTOGRAM = "update_log2"
_LOWEST, _HIGHEST = -2, 25  # edges of the histogram: elements that did not move are in the first bin
_EDGES = list(map(float, range(_LOWEST, _HIGHEST + 1)))
_PLACES = 16  # evenly spread over all elements; the parameter at each of them is looked at
_DTYPES = ("float64", "float32", "bfloat16", "float16", "other")  # of gradients
_POINTS = 512  # of a history
# In the order in which ranks exchange them.
_FIELDS = ("steps", "scale", "skipped", "unmoved", "update", "repairs", *(f"gradients/{name}" for name in _DTYPES))


class Histogram(NamedTuple):
    """Counts of elements, and the edges of their bins: one more than there are counts."""

    counts: list[int]
    edges: list[float]


class Metrics(dict[str, float]):
    """Numbers by name, as `Watch.metrics` returns them.

    Attributes:
        histograms: the histograms by name, each a pair of counts and edges.
    """

    def __init__(self, numbers: Mapping[str, float] = {}, histograms: Mapping[str, Histogram] = {}) -> None:
        super().__init__(numbers)
        self.histograms: dict[str, Histogram] = dict(histograms)


# ---------------------------------------------------------------- a step


class Measured(NamedTuple):
    """What a step did to a sample of elements, and the gradients that it was given."""

    counts: list[Tensor]  # of elements in each bin, for each device and dtype
    gradients: Mapping[str, int]  # how many have a dtype


class Point(NamedTuple):
    """What was measured at a step."""

    step: int
    counts: list[Tensor]
    scale: Tensor | None


class Meters:
    """What a watch counts and measures for its numbers."""

    def __init__(self, optimizers: Iterable[WatchedOptimizer], every: int | None) -> None:
        self._meters = {one: Meter(one, every) for one in optimizers} if every else {}
        self._begin = mark()  # of repairs
        self._skipped = 0  # steps, by scalers that others replaced
        self._fused: dict[WatchedOptimizer, Tensor] = {}  # by steps that skip themselves, which the device counts
        self._points: list[Point] = []
        self._stride = 1  # how many measured steps there are for each point

    def before(self, watched: WatchedOptimizer) -> None:
        """A step is about to run."""
        if watched in self._meters:
            self._meters[watched].before()

    def after(self, watched: WatchedOptimizer, scaling: Scaling | None) -> None:
        """It has run."""
        skipped = getattr(watched.optimizer, "found_inf", None)  # of a fused step under a scaler
        if skipped is not None:
            self._fused[watched] = (skipped != 0) + self._fused.get(watched, 0)
        if watched in self._meters and self._meters[watched].after(skipped):
            self._note(watched.steps, self._meters[watched], scaling)

    def _note(self, step: int, meter: "Meter", scaling: Scaling | None) -> None:
        """Keep what was measured; of a long run every second, fourth, ... point."""
        meter.times += 1
        if (meter.times - 1) % self._stride:
            return
        if len(self._points) >= _POINTS:
            self._points, self._stride = self._points[::2], 2 * self._stride
        scale = None if scaling is None else scaling.held()
        scale = None if scale is None else scale.detach().clone()
        self._points.append(Point(step, list(meter.measured.counts), scale))

    def history(self) -> list[tuple[int, list[int], float | None]]:
        """Of each point the step, the counts of the histogram, and the scale."""
        tensors = [tensor for point in self._points for tensor in (*point.counts, point.scale) if tensor is not None]
        values = iter(_fetch(tensors))
        rows = []
        for point in self._points:
            counts = [next(values) for _ in point.counts]
            scale = None if point.scale is None else next(values)[0]
            rows.append((point.step, [int(sum(bins)) for bins in zip(*counts, strict=True)], scale))
        return rows

    def unmeasured(self, scaling: Scaling | None) -> str:
        """Why there is no point."""
        if not self._meters:
            return "watch(..., metrics=n) measures each n-th"
        silent = sum(driven.skipped for driven in scaling.driven) if scaling is not None else 0
        count = int(self._skipped + silent + sum(count for (count,) in _fetch([*self._fused.values()])))
        return f"the scaler skipped {'the only one' if count == 1 else f'all {count}'}" if count else "there was none"

    def replaced(self, scaling: Scaling) -> None:
        """A scaler stands in the place of this one."""
        self._skipped += sum(driven.skipped for driven in scaling.driven)

    def numbers(
        self, optimizers: Sequence[WatchedOptimizer], scaling: Scaling | None
    ) -> tuple[dict[str, float], list[int], dict[str, float]]:
        """The numbers now, the counts of the histogram, and repairs by line."""
        measured = [self._meters[one].measured for one in optimizers if one in self._meters]
        bins = [count for one in measured for count in one.counts]
        held = None if scaling is None else scaling.held()
        scale = [] if held is None else [held]
        values = _fetch([*bins, *self._fused.values(), *scale])
        updates, counts = _of_updates(values[: len(bins)])
        numbers = {"steps": float(optimizers[0].steps)} if optimizers else {}
        numbers |= {**updates, **_of_gradients(one.gradients for one in measured)}
        if scaling is not None and scale:
            *fused, (numbers["scale"],) = values[len(bins) :]
            silent = sum(driven.skipped for driven in scaling.driven)
            numbers["skipped"] = self._skipped + silent + sum(count for (count,) in fused)
        numbers["repairs"], sites = _of_repairs(since(self._begin))
        return numbers, counts, sites


class Meter:
    """Measures every n-th step of one optimizer, the first among them."""

    def __init__(self, watched: WatchedOptimizer, every: int) -> None:
        self._watched, self._every = watched, every
        self._kept: list[tuple[weakref.ref[Tensor], int, Tensor]] = []  # how many elements of it, and their values
        self.measured = Measured([], {})
        self.times = 0  # it has measured

    def before(self) -> None:
        """A step is about to run."""
        step = self._watched.steps
        self._kept = []
        if step == 1 or not step % self._every:
            for parameter, number in _choose_samples(list(self._watched.parameters())):
                values = sample(parameter, number)
                if values is not None and values.is_floating_point():
                    self._kept.append((weakref.ref(parameter), number, values.clone()))

    def after(self, skipped: Tensor | None) -> bool:
        """It has run; a fused one may have skipped itself, which only the device knows. Whether it was measured."""
        kept, self._kept = self._kept, []
        if not kept:
            return False
        triples = defaultdict(list)
        for ref, number, was in kept:
            parameter = ref()
            if parameter is None or parameter.grad is None:
                continue
            now, gradient = sample(parameter, number), sample(parameter.grad, number)
            if now is None or gradient is None or not now.shape == gradient.shape == was.shape:
                continue
            if now.device == gradient.device == was.device and now.dtype is was.dtype:
                triples[now.device, now.dtype].append((was, now, gradient))
        counts = [_count_moves(*map(torch.cat, zip(*parts, strict=True))) for parts in triples.values()]
        if skipped is not None:
            counts = [count * (skipped == 0).to(count) for count in counts]
        dtypes = Counter(name_of(gradient.dtype) for _, gradient in self._watched.gradients())
        self.measured = Measured(counts, dtypes)
        return True


def _choose_samples(parameters: Sequence[Tensor]) -> list[tuple[Tensor, int]]:
    """Parameters to look at, and how many elements of each, so that every element counts about the same."""
    ends = list(itertools.accumulate(parameter.numel() for parameter in parameters))
    if not ends or not ends[-1]:
        return []
    places = Counter(bisect.bisect(ends, (n + 0.5) * ends[-1] / _PLACES) for n in range(_PLACES))
    return [(parameters[place], 256 * hits) for place, hits in places.items()]


def _count_moves(was: Tensor, now: Tensor, gradient: Tensor) -> Tensor:
    """How many elements with a gradient moved by 2^n to 2^(n+1) spacings of their dtype, for each n.

    Exponents are integers, so no rounding decides a bin.
    """
    info = torch.finfo(was.dtype)
    wide = torch.float64 if was.dtype is torch.float64 else torch.float32
    was, now = was.to(wide), now.to(wide)
    lowest, eps = math.frexp(info.smallest_normal)[1], math.frexp(info.eps)[1] - 1
    update = (now - was).abs()
    exponents = torch.where(was == 0, lowest, torch.frexp(was).exponent).clamp(min=lowest)
    bins = (torch.frexp(update).exponent - exponents - eps).clamp(_LOWEST + 1, _HIGHEST - 1)
    bins = torch.where(update == 0, _LOWEST, bins)
    bins = torch.where((gradient != 0) & update.isfinite(), bins, _HIGHEST)  # in no bin
    return (bins == torch.arange(_LOWEST, _HIGHEST, device=bins.device)[:, None]).sum(1).float()


# ---------------------------------------------------------------- numbers


def _fetch(tensors: Sequence[Tensor]) -> list[list[float]]:
    """The values of small tensors, with one transfer from each device that has any."""
    found: dict[int, list[float]] = {}
    for device in {tensor.device for tensor in tensors}:
        mine = [n for n, tensor in enumerate(tensors) if tensor.device == device]
        parts = [tensors[n].reshape(-1).float() for n in mine]
        values = iter(torch.cat(parts).tolist())
        found |= {n: list(itertools.islice(values, len(part))) for n, part in zip(mine, parts, strict=True)}
    return [found[n] for n in range(len(tensors))]


def _of_updates(counts: Iterable[Sequence[float]]) -> tuple[dict[str, float], list[int]]:
    """The numbers that are known from counts in bins, and these added up; none where nothing was counted."""
    total = [int(sum(bins)) for bins in zip(*counts, strict=True)] or [0] * (_HIGHEST - _LOWEST)
    if not sum(total):
        return {}, total
    return {"unmoved": total[0] / sum(total), "update": quantile(total, 0.5)}, total


def quantile(counts: Sequence[int], share: float) -> float:
    """Of |update| in spacings; in a bin elements are taken to be spread evenly over its exponents."""
    part, ends = sum(counts) * share, list(itertools.accumulate(counts))
    place = bisect.bisect_left(ends, part)
    return 2.0 ** (_EDGES[place] + 1 - (ends[place] - part) / counts[place]) if place else 0.0


def _of_gradients(dtypes: Iterable[Mapping[str, int]]) -> dict[str, float]:
    """The share of gradients that have a dtype."""
    total: Counter[str] = Counter()
    for some in dtypes:
        for name, count in some.items():
            total[name if name in _DTYPES else "other"] += count
    return {f"gradients/{name}": count / total.total() for name, count in total.items()}


def _of_repairs(records: Iterable[CastRecord]) -> tuple[float, dict[str, float]]:
    """How many there were, and at each line, whose file goes without its folder."""
    sites: Counter[str] = Counter()
    for record in records:
        place = (record.site or "elsewhere").partition(", in ")[0].replace("\\", "/").rpartition("/")[2]
        sites["repairs/" + re.sub(r"[^\w.: -]", "_", place)] += record.count
    return float(sites.total()), {name: float(count) for name, count in sites.items()}


def named(numbers: Mapping[str, float], counts: Sequence[int] = ()) -> Metrics:
    """With the names that loggers get."""
    histograms = {PREFIX + HISTOGRAM: Histogram(list(counts), _EDGES)} if sum(counts) else {}
    return Metrics({PREFIX + name: float(value) for name, value in numbers.items()}, histograms)


def check_group(group: Any) -> None:
    """Refuse what is no process group, and one without this rank."""
    if group is None:
        return
    if isinstance(group, int) and not isinstance(group, bool):  # `GroupMember.NON_GROUP_MEMBER`
        raise ValueError("group: this rank is not in it, so it has no metrics to add; call metrics() for its own")
    if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        what = "torch.distributed.group.WORLD for all ranks"
        raise TypeError(f"group must be a process group ({what}), not {type(group).__name__}")


def reduced(numbers: Mapping[str, float], counts: Sequence[int], group: Any) -> Metrics:
    """Those of all ranks of a group, which take part with one collective, whatever each of them has."""
    devices = {part.partition(":")[0] for part in dist.get_backend_config(group).split(",")}
    row = [*(numbers.get(name, math.nan) for name in _FIELDS), *counts]
    mine = torch.tensor(row, dtype=torch.float64)
    mine = mine.to("cpu" if "cpu" in devices else next(iter(devices)))
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, mine, group=group)
    rows = torch.stack(every).tolist()
    ranks = dist.get_process_group_ranks(group)
    found: dict[str, float] = {}
    for name, column in zip(_FIELDS, zip(*rows, strict=True), strict=False):
        known = [(value, rank) for value, rank in zip(column, ranks, strict=True) if not math.isnan(value)]
        if known:
            total, least = math.fsum(value for value, _ in known), min(known)
            most = max(known, key=lambda pair: (pair[0], -pair[1]))  # the first of those that have as much
            found[name] = total if name == "repairs" else total / len(known)  # of each rank its own
            found |= {f"{name}/min": least[0], f"{name}/min_rank": least[1]}
            found |= {f"{name}/max": most[0], f"{name}/max_rank": most[1]}
    sums = [int(sum(column)) for column in zip(*(row[len(_FIELDS) :] for row in rows), strict=True)]
    return named(found, sums)


Metrics.__module__ = "dtypeguard.results"
