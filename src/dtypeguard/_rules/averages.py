"""DG407: averages that cannot move, because their dtype has no room for a small step.

An average is known from how it is written: it takes nine tenths or more of itself, and the rest from elsewhere. What
one update should change is computed from samples, in float32, and what it did change is seen at later updates. An
element is lost if it should move, always in one direction, and stands where it stood at the first look. Averages that
take one part in a hundred or less are stuck then, since half a spacing would take fifty spacings of distance. The
others may only lag: they must have missed a whole spacing.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from .._base.errors import plain
from .._watch.events import Op, on
from .._watch.lineage import Debt, Node
from .._watch.recorder import Recorder
from .._watch.sites import Site
from ..amp._average import WatchedAverage
from ..amp._names import Names
from ..amp._optimizer import due
from ..amp._tensors import HALF, sample
from .optimizers import Book, Optimizers
from .steps import Steps, unseen

_MOST = 0.1  # share of what is new
_STUCK = 0.9  # share of elements
_PART = 0.25  # of the sample, that must be owed a move
_FAR, _NEAR = 8, 1  # spacings between an average and what it follows; closer, it has arrived
_LITTLE = 0.01  # share of what is new, with which a half average cannot follow
_LOOKS = 4
_NEARBY = 8  # lines back
_ELEMENTS, _TENSORS, _PLACES = 64, 16, 4096
_SLOW = 1e-3  # the share that is assumed where it is not known
_LISTS = "_foreach_mul_ _foreach_add_ _foreach_sub_ _foreach_lerp_".split()
_OPS = "mul_ add_ sub_ lerp_ copy_".split()


@dataclass(frozen=True, slots=True)
class Update:
    """What one update should do to an average."""

    change: Tensor  # of the sample, in float32
    distance: Tensor | None  # to what it follows
    source: Tensor | None
    slow: bool  # it takes so little of what is new


@dataclass(eq=False)
class Track:
    """One tensor that is updated like an average."""

    shape: torch.Size
    place: int  # in memory
    dtype: torch.dtype
    source: int = 0
    updates: int = 0
    looks: int = 0
    since: int = 0  # updates at the first look
    first: Tensor | None = None
    least: Tensor | None = None  # change of one update in one direction, signed
    sampled: int = 0
    lost: int = 0
    owed: int = 0  # elements that should have moved

    def look(self, now: Tensor, update: Update) -> None:
        """`now` is the sample after the update."""
        change = update.change
        self.source = 0 if update.source is None else update.source.data_ptr()
        self.sampled = len(now)
        if self.first is None or self.least is None or self.first.shape != now.shape:
            self._begin(now, change)
            return
        self.looks += 1
        one_way = (change.sign() == self.least.sign()) & (change != 0)
        self.least = torch.where(one_way, torch.minimum(change.abs(), self.least.abs()) * change.sign(), 0.0)
        spacing = now.abs() * torch.finfo(self.dtype).eps
        owed = (self.least != 0) & (change.abs() <= 0.55 * spacing)
        if update.distance is not None:
            owed &= update.distance.abs() >= (_NEAR if update.slow else _FAR) * spacing
        if not update.slow:
            owed &= self.least.abs() * (self.updates - self.since) >= spacing
        still = now == self.first
        self.owed, self.lost, stood = torch.stack([owed.sum(), (owed & still).sum(), still.sum()]).tolist()
        if stood < _STUCK * len(now):
            self._begin(now, change)

    def _begin(self, now: Tensor, change: Tensor) -> None:
        self.first, self.least, self.since = now, change, self.updates
        self.looks = self.owed = self.lost = 0


@dataclass(eq=False)
class Averages:
    """What is known of one program's averages."""

    tracks: dict[int, Track | None] = field(default_factory=dict)  # by place in memory; None: one of too many
    sites: dict[tuple[str, int], list[Track]] = field(default_factory=dict)
    decays: dict[int, float] = field(default_factory=dict)  # by place: what it was multiplied by just now
    chains: dict[Node, "Chain"] = field(default_factory=dict)  # by the last line of each
    said: set[tuple[str, int]] = field(default_factory=set)
    models: Any = field(default_factory=weakref.WeakKeyDictionary)  # AveragedModel: its watch, and how many updates
    updating: int = 0  # in `AveragedModel.update_parameters`


# ---------------------------------------------------------------- by hand


@on("before", "DG407", ops=_LISTS)
def lists(args: Any, audit: Recorder) -> None:
    """Without it there is no word after operations on lists."""


@on("after", "DG407", ops=_OPS + _LISTS)
def written(event: Op, audit: Recorder) -> None:
    targets, others = event.args[0], event.args[1] if len(event.args) > 1 else None
    if isinstance(targets, Tensor):
        targets = (targets,)
        others = (others,)
    elif not isinstance(others, (list, tuple)):
        others = (others,) * len(targets)
    first = targets[0] if targets else None
    if first is None or first.dtype not in HALF or event.backward:
        return
    averages = audit.state(Averages)
    if averages.updating or audit.state(Steps).inside:
        return
    for target, other in list(zip(targets, others, strict=False))[:_TENSORS]:
        if event.name in ("mul_", "_foreach_mul_"):
            decay = _number(other)
            if decay is not None and 1 - _MOST <= decay < 1:
                if len(averages.decays) > _PLACES:
                    averages.decays.clear()
                averages.decays[target.data_ptr()] = decay
        elif isinstance(other, Tensor) and other.shape == target.shape:
            _updated(audit, averages, event, target, other)


def _updated(audit: Recorder, averages: Averages, event: Op, target: Tensor, other: Tensor) -> None:
    """A tensor was written to in a way that may be an average's."""
    decay = averages.decays.pop(target.data_ptr(), None)
    kind = _KINDS[event.name.removeprefix("_foreach_").strip("_")]
    read = kind(audit, event, target, other, decay)
    if read is None or (target.requires_grad and not _follows(audit, target, other)):
        return
    track = _track(averages, event.site, target)
    if track is None:
        return
    track.updates += 1
    if not track.updates & (track.updates - 1):  # looks at powers of two
        _look_at(audit, averages, event, track, target, read())


def _look_at(
    audit: Recorder, averages: Averages, event: Op, track: Track, target: Tensor, update: Update | None
) -> None:
    now = _sample(target)
    if update is not None and now is not None:
        track.look(now, update)
        _judge(audit, averages, event)


def _track(averages: Averages, site: Site, target: Tensor) -> Track | None:
    place = target.data_ptr()
    track = averages.tracks.get(place)
    if track is None or track.shape != target.shape or track.dtype is not target.dtype:
        if place in averages.tracks and track is None:
            return None
        here = averages.sites.setdefault(site.key, [])
        if len(averages.tracks) > _PLACES:
            averages.tracks.clear()
            averages.sites = {site.key: here}
        track = Track(target.shape, place, target.dtype) if len(here) < _TENSORS else None
        if track is not None:
            here.append(track)
        averages.tracks[place] = track
    return track


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 and value.is_cpu else None
    return float(value) if isinstance(value, (int, float)) else None


def _sample(tensor: Tensor) -> Tensor | None:
    values = sample(tensor)
    return None if values is None else values[:: max(1, len(values) // _ELEMENTS)].float()


# ---------------------------------------------------------------- how averages are written

Read = Callable[[], Update | None]


def _towards(target: Tensor, source: Tensor, share: float, taken: float | None = None) -> Read:
    """`target` moves to `source` by a share of their distance; `taken`: `source` comes multiplied by it already."""

    def read() -> Update | None:
        mine, theirs = _sample(target), _sample(source)
        if mine is None or theirs is None or target.stride() != source.stride() or target.device != source.device:
            return None
        distance = theirs / (taken or 1.0) - mine
        return Update(share * distance, distance, source, share <= _LITTLE)

    return read


def _by(audit: Recorder, target: Tensor, step: Tensor, share: float) -> Read | None:
    """`target` moves by a share of `step`, which was computed from it."""
    if share == 1 and not _from(audit, target, step):
        return None

    def read() -> Update | None:
        theirs = _sample(step)
        if theirs is None or target.stride() != step.stride() or target.device != step.device:
            return None
        if abs(share) != 1:
            return Update(share * theirs, theirs, None, abs(share) <= _LITTLE)
        source = _source(audit, target, step)
        mine, goal = _sample(target), None if source is None else _sample(source)
        distance = None if mine is None or goal is None else goal - mine
        slow = distance is not None and bool((theirs.abs() <= 2 * _LITTLE * distance.abs()).float().mean() >= _STUCK)
        return Update(share * theirs, distance, source, slow)

    return read


def _added(audit: Recorder, event: Op, target: Tensor, other: Tensor, decay: float | None) -> Read | None:
    """`ema.mul_(d).add_(w, alpha=1 - d)`, `ema.mul_(d).add_((1 - d) * w)`, `ema.add_(w - ema, alpha=1 - d)`."""
    share = _number(event.kwargs.get("alpha", 1))
    if share is None:
        return None
    if decay is not None:
        new = 1 - decay
        if share == 1:
            return _towards(target, other, new, taken=new)
        return _towards(target, other, share) if abs(share - new) <= 0.01 * new else None
    lone = event.name.startswith("_foreach") or _from(audit, target, other)
    return _by(audit, target, other, share) if (0 < share <= _MOST and lone) or share == 1 else None


def _subtracted(audit: Recorder, event: Op, target: Tensor, other: Tensor, decay: float | None) -> Read | None:
    """`ema.sub_((1 - d) * (ema - w))`, `ema.sub_(ema - w, alpha=1 - d)`."""
    share = _number(event.kwargs.get("alpha", 1))
    if share is None or not (0 < share <= _MOST or share == 1):
        return None
    lone = event.name.startswith("_foreach") and share < 1
    return _by(audit, target, other, -share) if lone or _from(audit, target, other) else None


def _interpolated(audit: Recorder, event: Op, target: Tensor, other: Tensor, decay: float | None) -> Read | None:
    """`ema.lerp_(w, 1 - d)`."""
    share = _number(event.args[2] if len(event.args) > 2 else event.kwargs.get("weight"))
    return _towards(target, other, share) if share is not None and 0 < share <= _MOST else None


def _copied(audit: Recorder, event: Op, target: Tensor, other: Tensor, decay: float | None) -> Read | None:
    """`ema.copy_(d * ema + (1 - d) * w)`."""
    node = audit.lineage.get(other)
    if node is None or node.op not in ("add", "sub", "lerp") or not _from(audit, target, other):
        return None

    def read() -> Update | None:
        source = _source(audit, target, other)
        return None if source is None else _towards(target, source, _SLOW)()

    return read


_KINDS: dict[str, Callable[[Recorder, Op, Tensor, Tensor, float | None], Read | None]] = {
    "add": _added,
    "sub": _subtracted,
    "lerp": _interpolated,
    "copy": _copied,
}


# ---------------------------------------------------------------- bound anew


@dataclass(eq=False)
class Chain(Debt):
    """An average that is another tensor after each update, each computed from the last."""

    site: Site
    track: Track
    last: Tensor | None = None  # the sample before an update that is looked at


@on("summed", "DG407")
def bound_anew(event: Op, audit: Recorder) -> None:
    """`ema[k] = d * ema[k] + (1 - d) * w`."""
    averages, out, node = audit.state(Averages), event.out, audit.lineage.get(event.out)
    if node is None or averages.updating or audit.state(Steps).inside:
        return
    chain = _chain(averages, event, node)
    if chain is None:
        return
    track = chain.track
    track.updates += 1
    if chain.last is not None and not track.updates & (track.updates - 1):
        update, known = _made_anew(audit, event, chain.last), averages.sites.setdefault(event.site.key, [])
        if update is not None and track not in known and len(known) < _TENSORS:
            known.append(track)
            node.owes((chain,))
        if update is not None and track in known:
            _look_at(audit, averages, event, track, out, update)
    chain.last = None if track.updates & (track.updates + 1) else _sample(out)


def _chain(averages: Averages, event: Op, node: Node) -> Chain | None:
    """What came from the same line before; debts are for those that are averages, since they are few."""
    chains, nodes = averages.chains, list(node.ancestors(most=_NEARBY))
    found = [debt for debt in node.debts if isinstance(debt, Chain)]
    found += [chains[ancestor] for ancestor in nodes if ancestor in chains]
    chain = next((c for c in found if c.site is event.site and c.track.shape == event.out.shape), None)
    if chain is not None or any(ancestor.named for ancestor in nodes):
        if len(chains) > _PLACES:
            chains.clear()
        for ancestor in nodes:
            if chain is not None and chains.get(ancestor) is chain:
                del chains[ancestor]
        chains[node] = chain or Chain(event.site, Track(event.out.shape, event.out.data_ptr(), event.out.dtype))
    return chain


def _made_anew(audit: Recorder, event: Op, last: Tensor) -> Update | None:
    """What is new in a sum is one small share of a parameter, or of the distance to it."""
    mine, new = event.args[:2]
    weight = _number(event.args[2] if len(event.args) > 2 else event.kwargs.get("alpha", 1))
    for kept, other in ((mine, new), (new, mine)) if event.name == "add" else ((mine, new),):
        source = _source(audit, event.out, other) if isinstance(other, Tensor) else None
        if source is None or weight is None or not isinstance(kept, Tensor):
            continue
        old, part, goal = _sample(kept), _sample(other), _sample(source.to(event.out.dtype))
        if old is None or part is None or goal is None or not last.shape == old.shape == part.shape == goal.shape:
            continue
        distance, part = goal - last, (-weight if event.name == "sub" else weight) * part
        for whole in (goal, distance):
            share = _share(part, whole, event.out.dtype)
            if share is not None and 0 < share <= _MOST and bool((old.abs() >= (1 - 1.1 * _MOST) * last.abs()).all()):
                return Update(share * distance, distance, source, share <= _LITTLE)
    return None


def _share(part: Tensor, whole: Tensor, dtype: torch.dtype) -> float | None:
    """By what a tensor was multiplied, if that was one number."""
    some, info = whole != 0, torch.finfo(dtype)
    if not bool(some.any()):
        return None
    share = (part[some] / whole[some]).median()
    error = (part - share * whole).abs() - 2 * info.eps * (share * whole).abs()
    return float(share) if bool((error <= 2 * info.smallest_normal * info.eps).all()) else None


# ---------------------------------------------------------------- where tensors come from


def _ancestors(audit: Recorder, tensor: Tensor) -> Iterator[Node]:
    node = audit.lineage.get(tensor)
    return iter(()) if node is None else node.ancestors(most=_NEARBY)


def _from(audit: Recorder, target: Tensor, other: Tensor) -> bool:
    """Whether one tensor was computed from another."""
    own = audit.lineage.get(target)
    return own is not None and any(node is own for node in _ancestors(audit, other))


def _follows(audit: Recorder, target: Tensor, other: Tensor) -> bool:
    """Whether what an average takes comes of a parameter besides itself."""
    own = audit.lineage.get(target)
    return any(node.named and node is not own for node in _ancestors(audit, other))


def _source(audit: Recorder, target: Tensor, other: Tensor) -> Tensor | None:
    """The parameter besides `target` that another tensor was computed from."""
    nodes = {node.op for node in _ancestors(audit, other) if node.named}
    found = [tensor for name, tensor in _tensors_of(audit) if f"parameter {name}" in nodes]
    fits = [t for t in found if t.shape == target.shape and t.data_ptr() != target.data_ptr()]
    return fits[0].detach() if fits else None


def _tensors_of(audit: Recorder) -> Iterator[tuple[str, Tensor]]:
    for path, module in audit.modules():
        for tensors in (module._parameters, module._buffers):
            yield from ((f"{path}.{key}", tensor) for key, tensor in tensors.items() if tensor is not None)


# ---------------------------------------------------------------- the verdict


def _judge(audit: Recorder, averages: Averages, event: Op) -> None:
    """Once most tensors of a line were looked at equally often."""
    key = event.site.key
    tracks = averages.sites.get(key, [])
    most = max((track.updates for track in tracks), default=0)
    done = [track for track in tracks if track.updates == most]
    ready = [track for track in done if track.looks >= _LOOKS]
    owed, lost = sum(track.owed for track in ready), sum(track.lost for track in ready)
    sampled = sum(track.sampled for track in done)
    if len(done) < 0.8 * len(tracks) or owed < max(1, _PART * sampled) or lost < _STUCK * owed or key in averages.said:
        return
    stuck = [track for track in ready if track.owed and track.lost >= _STUCK * track.owed]
    if any(track.place in _trained(audit) for track in stuck):
        return
    averages.said.add(key)
    dtype = stuck[0].dtype
    facts = {"found": plain(dtype), "share": lost / owed, "steps": most}
    audit.find(
        "DG407", event.site, facts=facts, module=event.module, op=event.name, parameters=_names(audit, stuck),
        from_dtype=dtype, to_dtype=torch.float32,
    )  # fmt: skip


def _trained(audit: Recorder) -> set[int]:
    """Where parameters are that are trained, with an optimizer or by hand."""
    held = (p for met in audit.state(Optimizers) for p in met.watched.parameters())
    with_gradients = (t for _, t in _tensors_of(audit) if t.requires_grad and t.is_leaf and t.grad is not None)
    return {tensor.data_ptr() for tensors in (held, with_gradients) for tensor in tensors}


def _names(audit: Recorder, tracks: Iterable[Track]) -> list[str]:
    """What the averages follow, else what they are called themselves, else what they look like."""
    known = {tensor.data_ptr(): name for name, tensor in _tensors_of(audit) if tensor.numel()}
    shapes = (f"a tensor of shape {list(track.shape)}" for track in tracks)
    names = (known.get(track.source) or known.get(track.place) for track in tracks)
    return list(dict.fromkeys(name or shape for name, shape in zip(names, shapes, strict=True)))


# ---------------------------------------------------------------- AveragedModel


@on("start", "DG407")
def replace(audit: Recorder) -> None:
    audit.patches.replace(AveragedModel, "update_parameters", functools.partial(_averaging, audit))


def _averaging(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    averages = audit.state(Averages)

    @functools.wraps(original)
    def update_parameters(self: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        functions = (getattr(self, "avg_fn", None), getattr(self, "multi_avg_fn", None))
        own = all(getattr(function, "__module__", "torch.").startswith("torch.") for function in functions)
        averages.updating += 1
        try:
            with unseen(audit) if own else contextlib.nullcontext():
                result = original(self, model, *args, **kwargs)
        finally:
            averages.updating -= 1
        if audit.live:
            audit.guarded(_look, audit, averages, self, model)
        return result

    return update_parameters


def _look(audit: Recorder, averages: Averages, averaged: AveragedModel, model: nn.Module) -> None:
    watch, updates = averages.models.get(averaged, (None, 0))
    half = not updates and any(parameter.dtype in HALF for parameter in averaged.parameters())
    if half and not torch.__future__.get_swap_module_params_on_conversion():
        watch = WatchedAverage(averaged, Names([model]), Book(audit))
    averages.models[averaged] = watch, updates + 1
    if watch is not None and due(updates + 1):
        watch.look(updates + 1)


@on("end", "DG407")
def forget(audit: Recorder) -> None:
    averages = audit.state(Averages)
    averages.models.clear()
    averages.tracks.clear()
    averages.sites.clear()
    averages.chains.clear()
