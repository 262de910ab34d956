"""Averages of parameters that cannot move, because their dtype has no room for a small step."""

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from .._base.errors import plain
from .._watch.ledger import Ledger
from ._names import Names, named, unwrap
from ._tensors import HALF, sample, version_of

_STUCK = 0.9  # share of elements that stayed: decay 0.999 in bfloat16 leaves 94 to 98 %
_MOVES = 0.5  # an average of which more has moved follows, or was copied
_LOOKS = 3  # before a verdict
_GROWTH = 1.3  # stochastic rounding doubles the moved share when the steps double
_CHANCES = 384  # to move: elements times steps; fewer may all have been missed by stochastic rounding
_FAR = 8  # spacings between an average and what it follows, from which on it can follow
_OWED = 3  # spacings that an element should have moved; of stochastic rounding one in twenty has not moved at all then
_SURE = 32  # spacings that those elements must have moved that tell how fast an average is
_FEW = 8  # elements; fewer show nothing
_FASTEST = 0.1  # share of the distance that an average moves in one step


class WatchedAverage:
    """An `AveragedModel`, an EMA module, or its tensors, beside the model that it follows."""

    def __init__(self, averaged: Any, names: Names, ledger: Ledger) -> None:
        self._ledger, self._names = ledger, names
        averaged = list(averaged) if isinstance(averaged, Iterator) else averaged  # it is read at each look
        self._averaged = weakref.ref(averaged) if isinstance(averaged, nn.Module) else lambda: averaged
        self._pairs: dict[str, _Pair] = {}
        self._moved: dict[int, float] = {}  # by step: the share of elements that have moved since the first look
        if not any(True for _ in self._matched()):
            raise ValueError(f"averaged: nothing in it has the name of a parameter of {names.title}")

    def _matched(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The averaged tensors as they are now, each with what it follows."""
        sources = {name: parameter for parameter, name in self._names.named()}
        for name, tensor in _tensors(self._averaged(), sources):
            if name in sources:
                yield name, tensor, sources[name]

    def look(self, step: int) -> None:
        """Compare with the first look.

        Stochastic rounding moves more elements with every step. If no more have moved than at half the steps, the rest
        never will.
        """
        __tracebackhide__ = True
        pairs = []
        looks = []
        for name, average, source in self._matched():
            pair = self._pairs.setdefault(name, _Pair())
            pairs.append(pair)
            counts = pair.look(average, source, step)
            if counts is not None:
                looks.append((name, pair, counts))
        differ, stuck = (sum(counts[n] for _, _, counts in looks) for n in (0, 1))
        share = stuck / differ if differ else 0.0
        if differ and share < _MOVES:  # it was copied, or it follows: it is judged anew
            self._moved = {}
            for pair in pairs:
                pair.begin()
        elif differ and (stuck < differ or any(pair.updated for pair in pairs)):
            half = max((known for known in self._moved if known <= step / 2), default=None)
            self._moved[step] = 1 - share
            if len(self._moved) < _LOOKS:
                return
            still = half is not None and share >= _STUCK and 1 - share <= _GROWTH * self._moved[half]
            still = still and stuck * step >= _CHANCES
            if not still and not _behind([pair for _, pair, _ in looks]):
                return
            least = min(_STUCK, share)
            names = [name for name, _, counts in looks if counts[1] >= least * counts[0]]
            dtype = next(pair.dtype for name, pair, _ in looks if name in names)
            facts = {"found": plain(dtype), "share": share, "steps": step}
            self._ledger.add("DG407", (), "an average", facts, parameters=names, from_dtype=dtype, op="averaging")


def _behind(pairs: list["_Pair"]) -> bool:
    """Whether most elements that should have moved have not, while others did: those tell how fast the average is."""
    moved, owed = torch.cat([pair.way() for pair in pairs], 1)
    leading = owed >= owed.quantile(0.75)
    speed = float(moved[leading].sum() / owed[leading].sum())
    if not 0 < speed <= _FASTEST or float(moved[leading].sum()) < _SURE:
        return False
    late = speed * owed >= _OWED
    return int(late.sum()) >= _FEW and float((moved[late] == 0).double().mean()) >= _MOVES


class _Pair:
    """One averaged tensor and what it follows, as they were at the first look."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """The next look is the first."""
        self._way: tuple[Tensor, Tensor, Tensor, int] | None = None  # the last distance, all of them, values, step
        self._first: tuple[Tensor, Tensor, weakref.ref[Tensor], int] | None = None
        self.updated = False  # surely; a write through `.data` leaves no trace
        self.dtype = torch.float32

    def look(self, average: Tensor, source: Tensor, step: int) -> tuple[int, int] | None:
        """How many elements differ from the model, which has moved, and how many of these have not moved with it."""
        values, goal = sample(average), sample(source)
        if average.dtype not in HALF or values is None or goal is None or values.shape != goal.shape:
            return None
        goal = goal.to(values.device)
        self._walk(values, goal, step)
        if self._first is None:
            self._first = values.clone(), goal.clone(), weakref.ref(average), version_of(average)
            return None
        old, target, ref, version = self._first
        self.dtype, self.updated = average.dtype, self.updated or ref() is not average or version_of(average) != version
        differ = values != goal.to(values.dtype)
        still = differ & (values == old)
        moved = (goal != target).any() | differ.all()
        count, stuck, follows = torch.stack([differ.sum(), still.sum(), moved]).tolist()
        return (count, stuck) if count and follows else None

    def _walk(self, values: Tensor, goal: Tensor, step: int) -> None:
        """Add up the distance to go, in all steps since the last look."""
        distance = goal.float() - values.float()
        distance = distance.masked_fill(distance.abs() < _FAR * self._spacing(values), 0.0)
        if self._way is None:
            owed = torch.zeros_like(distance)
        else:
            last, owed, _, before = self._way
            one_way = distance.sign() == last.sign()
            owed = torch.where(one_way, owed + (step - before) * (distance + last) / 2, 0)
        self._way = distance, owed, values.clone(), step

    def way(self) -> Tensor:
        """What each element moved, and what it had to move if it had gone all the way in each step; in spacings."""
        if self._way is None or self._first is None:
            return torch.zeros(2, 0)
        _, owed, values, _ = self._way
        moved = (values.float() - self._first[0].float()) * owed.sign()
        return (torch.stack([moved, owed.abs()]) / self._spacing(values)).cpu()

    def _spacing(self, values: Tensor) -> Tensor:
        info = torch.finfo(values.dtype)
        return values.float().abs().clamp(min=info.smallest_normal) * info.eps


def _tensors(averaged: Any, sources: Mapping[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
    if averaged is None:  # a module that is gone
        return []
    if isinstance(averaged, nn.Module):
        inner = averaged.module if isinstance(averaged, AveragedModel) else averaged
        return [(name, tensor) for tensor, name in named(unwrap(inner))]
    found: list[tuple[str, Any]]
    if isinstance(averaged, Mapping):
        found = list(averaged.items())
    elif isinstance(averaged, Iterable) and not isinstance(averaged, str):
        found = list(zip(sources, averaged, strict=False))
    else:
        found = [("", None)]
    for _, tensor in found:
        if not isinstance(tensor, Tensor):
            of = "" if tensor is None else f" of {type(tensor).__name__}"
            raise TypeError(
                "averaged must be an nn.Module (an AveragedModel, say), a dict of tensors by parameter name, or "
                f"tensors in the order of model.parameters(), not {type(averaged).__name__}{of}"
            )
    return found
