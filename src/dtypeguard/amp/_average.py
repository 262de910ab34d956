"""Averages of parameters that cannot move, because their dtype has no room for a small step.

Samples of an average and of what it follows are compared with the first ones, from look to look. How fast an average
should be is not known here, nor how it rounds: an element that never moved, though what it follows is away from it
always on the same side, is stuck if no more elements move the longer it takes, or if others show that it is late.
"""

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from .._core.base.dtypes import HALF
from .._core.base.modules import root_of
from .._engine.watch.events import tell
from .._engine.watch.ledger import Add
from ._names import Names, named
from ._tensors import sample, version_of

STUCK = 0.9  # share of elements that stayed: decay 0.999 in bfloat16 leaves 94 to 98 %
_MOVES = 0.5  # an average of which more has moved follows, or was copied
_LOOKS = 3  # before a verdict
_GROWTH = 1.3  # stochastic rounding doubles the moved share when the steps double
_CHANCES = 384  # to move: elements times steps; fewer may all have been missed by stochastic rounding
_ONE_WAY = 0.9  # of the distances, added up without their signs
FAR = 8  # spacings between an average and what it follows, from which on any can follow
_OWED = 3  # spacings that an element should have moved; of stochastic rounding one in twenty has not moved at all then
_SURE = 32  # spacings that those elements must have moved that tell how fast an average is
_FEW = 8  # elements; fewer show nothing
_FASTEST = 0.1  # share of the distance that an average moves in one step


class Track:
    """One averaged tensor beside what it follows, since the first look."""

    _values: Tensor  # samples of the average, in float32
    _far: Tensor  # how far it is from what it follows, or zero
    _way: Tensor  # these added up, over all steps, as long as they are on one side
    _step: int  # of the last look

    def __init__(self, name: str = "", updated: bool = False) -> None:
        """`updated`: whether it surely was; a write through `.data` leaves no trace."""
        self.name, self.updated, self.dtype, self.sampled = name, updated, torch.float32, 0
        self.begin()

    def begin(self) -> None:
        """The next look is the first."""
        self._first: tuple[Tensor, Tensor] | None = None
        self.looks = -1  # after the first
        self.moved = 0  # elements
        self.differ = self.stuck = 0  # those that are away on the same side always, and have not moved

    def look(self, average: Tensor, source: Tensor, step: int, near: float = 0.5, most: float = math.inf) -> None:
        """Samples of both. Nearer than so many spacings an element has arrived; from the most on it can move."""
        values, goal = average.float(), source.to(average.device, torch.float32, copy=True)
        distance, spacing = goal - values, _spacing(average)
        far = distance.masked_fill(distance.abs() < FAR * spacing, 0.0)
        self.dtype, self.sampled = average.dtype, len(values)
        if self._first is None or self._first[0].shape != values.shape:
            self.begin()
            self._first, self._sum, self._length = (values, goal), distance, distance.abs()
            self._way = torch.zeros_like(distance)
        else:
            old, target = self._first
            self._sum, self._length = self._sum + distance, self._length + distance.abs()
            towards = self._way + (step - self._step) * (far + self._far) / 2
            self._way = torch.where(far.sign() == self._far.sign(), towards, 0)
            away, moved = distance.abs() / spacing, values != old
            differ = away > near
            follows = (goal != target).any() | differ.all()
            differ &= follows & (away <= most) & (self._sum.abs() >= _ONE_WAY * self._length)
            counts = torch.stack([moved.sum(), differ.sum(), (differ & ~moved).sum()])
            self.moved, self.differ, self.stuck = counts.tolist()
        self._values, self._far, self._step = values, far, step
        self.looks += 1

    def way(self) -> Tensor:
        """What each element moved, and what it had to move if it had gone all the way in each step; in spacings."""
        if self._first is None:
            return torch.zeros(2, 0)
        moved = (self._values - self._first[0]) * self._way.sign()
        return (torch.stack([moved, self._way.abs()]) / _spacing(self._values.to(self.dtype))).cpu()


T = TypeVar("T", bound=Track)


class Tracks(dict[Any, T]):
    """Tensors that are averaged together."""

    def __init__(self) -> None:
        self._moved: dict[int, float] = {}  # by step: the share of elements that have moved since the first look

    def stuck(self, step: int) -> tuple[list[T], float]:
        """Those that stand still, and the share of elements that do, as they were looked at in a step."""
        tracks = [track for track in self.values() if track.differ]
        differ, stuck = sum(track.differ for track in tracks), sum(track.stuck for track in tracks)
        share = stuck / differ if differ else 0.0
        if differ and share < _MOVES:  # it was copied, or it follows: it is judged anew
            self._moved = {}
            for track in self.values():
                track.begin()
        elif differ and (stuck < differ or any(track.updated for track in self.values())):
            half = max((known for known in self._moved if known <= step / 2), default=None)
            now = self._moved[step] = sum(t.moved for t in tracks) / sum(t.sampled for t in tracks)
            # Stochastic rounding moves more with every step: if no more have moved than at half of them, none will.
            still = half is not None and share >= STUCK and now <= _GROWTH * self._moved[half]
            if len(self._moved) >= _LOOKS and ((still and stuck * step >= _CHANCES) or _behind(tracks)):
                return [track for track in tracks if track.stuck >= min(STUCK, share) * track.differ], share
        return [], share


def _behind(tracks: Sequence[Track]) -> bool:
    """Whether most elements that should have moved have not, while others did: those tell how fast the average is."""
    moved, owed = torch.cat([track.way() for track in tracks], 1)
    leading = owed >= owed.quantile(0.75)
    speed = float(moved[leading].sum() / owed[leading].sum())
    if not 0 < speed <= _FASTEST or float(moved[leading].sum()) < _SURE:
        return False
    late = speed * owed >= _OWED
    return int(late.sum()) >= _FEW and float((moved[late] == 0).double().mean()) >= _MOVES


def _spacing(values: Tensor) -> Tensor:
    info = torch.finfo(values.dtype)
    return values.float().abs().clamp(min=info.smallest_normal) * info.eps


class WatchedAverage:
    """An `AveragedModel`, an EMA module, or its tensors, beside the model that it follows."""

    def __init__(self, averaged: Any, names: Names, add: Add) -> None:
        self._add, self._names, self._tracks = add, names, Tracks[Track]()
        averaged = list(averaged) if isinstance(averaged, Iterator) else averaged  # it is read at each look
        self._averaged = weakref.ref(averaged) if isinstance(averaged, nn.Module) else lambda: averaged
        self._first: dict[str, tuple[weakref.ref[Tensor], int]] = {}  # the tensors at the first look, their versions
        if not any(True for _ in self._matched()):
            raise ValueError(f"averaged: nothing in it has the name of a parameter of {names.title}")

    def _matched(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The averaged tensors as they are now, each with what it follows."""
        sources = {name: parameter for parameter, name in self._names.named()}
        for name, tensor in _tensors(self._averaged(), sources):
            if name in sources:
                yield name, tensor, sources[name]

    def look(self, step: int) -> None:
        """Compare with the first look, and ask the rules."""
        __tracebackhide__ = True
        for name, average, source in self._matched():
            values, goal = sample(average), sample(source)
            if average.dtype in HALF and values is not None and goal is not None and values.shape == goal.shape:
                ref, version = self._first.setdefault(name, (weakref.ref(average), version_of(average)))
                track = self._tracks.setdefault(name, Track(name))
                track.updated = track.updated or ref() is not average or version_of(average) != version
                track.look(values, goal, step)
        tell("averaged", self._tracks, step, self._add)


def _tensors(averaged: Any, sources: Mapping[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
    if averaged is None:  # a module that is gone
        return []
    if isinstance(averaged, nn.Module):
        inner = averaged.module if isinstance(averaged, AveragedModel) else averaged
        return [(name, tensor) for tensor, name in named(root_of(inner))]
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
