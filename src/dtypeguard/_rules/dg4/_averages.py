"""How averages are written, and what is known of them while a program is audited."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..._engine.watch.events import Op
from ..._engine.watch.lineage import Debt, Node
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.sites import Site
from ...amp._average import STUCK, Track, Tracks
from ...amp._tensors import sample
from ..optimizers import Optimizers

MOST = 0.1  # share of what is new
_LOOKS = 4  # after the first
_NEARBY = 8  # lines back
TENSORS, PLACES = 256, 4096
OPS = "mul_ add_ sub_ lerp_ copy_ _foreach_mul_ _foreach_add_ _foreach_sub_ _foreach_lerp_".split()
Goal = tuple[Tensor, float, int]  # a sample of what an average follows, the share that it takes (0: not known), a place


class Mean(Track):
    """One tensor that is updated like an average."""

    def __init__(self, tensor: Tensor, name: str = "") -> None:
        super().__init__(name, updated=True)
        self.shape, self.dtype, self.place, self.source = tensor.shape, tensor.dtype, tensor.data_ptr(), 0
        self.updates = 0
        self.made: Node | None = None


class Line(Tracks[Mean]):
    """Those that a line updates, which another line may do too."""

    said = False

    def takes(self, mean: Mean) -> bool:
        """Whether it is one of those that are looked at, which are not too many."""
        if len(self) < TENSORS:
            self[mean] = mean
        return mean in self

    def still(self) -> tuple[list[Mean], float]:
        """What `stuck` tells, where all is rounded to nearest: an element that stood still so often never moves."""
        for mean in self.values():
            if mean.moved > (1 - STUCK) * mean.sampled:  # it follows, or was copied
                mean.begin()
        means = [mean for mean in self.values() if mean.looks >= _LOOKS and mean.stuck]
        share = sum(mean.stuck for mean in means) / sum(mean.differ for mean in means) if means else 0.0
        return [mean for mean in means if mean.stuck >= STUCK * mean.differ] if share >= STUCK else [], share


@dataclass(eq=False)
class Averages:
    """What is known of one program's averages."""

    lines: dict[tuple[str, int], Line] = field(default_factory=dict)
    means: dict[int, tuple[Mean, Line] | None] = field(default_factory=dict)  # by place; None: one of too many
    decays: dict[int, float] = field(default_factory=dict)  # by place: what it was multiplied by just now
    chains: dict[Node, "Chain"] = field(default_factory=dict)  # by the last line of each
    updating: int = 0  # in `AveragedModel.update_parameters`

    def line(self, site: Site) -> Line:
        return self.lines.setdefault(site.key, Line())

    def mean(self, site: Site, tensor: Tensor, name: str = "") -> tuple[Mean, Line] | None:
        place = tensor.data_ptr()
        known = self.means.get(place)
        if place not in self.means or (known and (known[0].shape, known[0].dtype) != (tensor.shape, tensor.dtype)):
            line = self.line(site)
            if len(self.means) > PLACES:
                self.means.clear()
                self.lines = {site.key: line}
            mean = Mean(tensor, name)
            known = self.means[place] = (mean, line) if line.takes(mean) else None
        return known


# ---------------------------------------------------------------- in place


def form(audit: Recorder, event: Op, target: Tensor, other: Tensor, decay: float | None) -> tuple[str, float] | None:
    """What the other tensor is, and the share of it that is added; None: no average."""
    name, made = event.name.removeprefix("_foreach_").strip("_"), _computed_from(audit, target, other)
    if name == "copy":  # `ema.copy_(d * ema + (1 - d) * w)`
        node = audit.lineage.get(other)
        return ("sum", 0.0) if made and node is not None and node.op in ("add", "sub", "lerp") else None
    if name == "lerp":  # `ema.lerp_(w, 1 - d)`
        share = number(event.args[2] if len(event.args) > 2 else event.kwargs.get("weight"))
        return ("goal", share) if share is not None and 0 < share <= MOST else None
    share = number(event.kwargs.get("alpha", 1))
    if decay is not None and name == "add":  # `ema.mul_(d).add_(w, alpha=1 - d)`, `ema.mul_(d).add_((1 - d) * w)`
        if share == 1:
            return "part", 1 - decay
        return ("goal", share) if share is not None and abs(share - (1 - decay)) <= 0.01 * (1 - decay) else None
    sign = 1 if name == "add" else -1
    if share == 1:  # `ema.sub_((1 - d) * (ema - w))`
        return ("step", sign) if made else None
    if share is not None and 0 < share <= MOST and (made or event.name.startswith("_foreach")):
        return "distance", sign * share  # `ema.add_(w - ema, alpha=1 - d)`
    return None


def goal_of(audit: Recorder, target: Tensor, other: Tensor, kind: str, share: float, mean: Mean) -> Goal | None:
    source = _source(audit, target, other) if kind in ("sum", "step") else other
    if source is None and kind == "step":
        source, share, kind = other, share * mean.updates, "steps"
    if source is None or target.stride() != source.stride() or target.device != source.device:
        return None
    mine, theirs, new = sample(target), sample(source), sample(other)
    if mine is None or theirs is None or new is None or new.shape != theirs.shape:
        return None
    mine, theirs, new = mine.float(), theirs.float(), new.float()
    if kind == "part":
        theirs = theirs / share
    elif kind == "steps":  # nobody knows what it follows: what it should have moved until now
        return mine + theirs * share, 0.0, 0
    elif kind == "distance":
        return mine + theirs * math.copysign(1, share), abs(share), 0
    elif kind == "step":
        share = float((new.abs() / (theirs - mine).abs()).nanmedian())
        if not share:
            return None
    return theirs, share, source.data_ptr()


def number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        value = value.item() if value.numel() == 1 and value.is_cpu else None
    return float(value) if isinstance(value, (int, float)) else None


# ---------------------------------------------------------------- bound anew


@dataclass(eq=False)
class Chain(Debt):
    """An average that is another tensor after each update, each computed from the last."""

    site: Site
    mean: Mean
    last: Tensor | None = None  # the sample before an update that is looked at


def chain_of(averages: Averages, event: Op, node: Node) -> Chain | None:
    """What came from the same line before; debts are for those that are averages, since they are few."""
    chains, nodes = averages.chains, list(node.ancestors(most=_NEARBY))
    found = [debt for debt in node.debts if isinstance(debt, Chain)]
    found += [chains[ancestor] for ancestor in nodes if ancestor in chains]
    chain = next((c for c in found if c.site is event.site and c.mean.shape == event.out.shape), None)
    if chain is not None or any(ancestor.named for ancestor in nodes):
        if len(chains) > PLACES:
            chains.clear()
        for ancestor in nodes:
            if chain is not None and chains.get(ancestor) is chain:
                del chains[ancestor]
        if chain is None:
            chain = Chain(event.site, Mean(event.out))
            chain.mean.made = next((one for one in node.sources() if one.site.key != event.site.key), None)
        chains[node] = chain
    return chain


def made_anew(audit: Recorder, event: Op, last: Tensor) -> Goal | None:
    """What is new in a sum is one small share of a parameter, or of the distance to it."""
    mine, new = event.args[:2]
    weight = number(event.args[2] if len(event.args) > 2 else event.kwargs.get("alpha", 1))
    for kept, other in ((mine, new), (new, mine)) if event.name == "add" else ((mine, new),):
        source = _source(audit, event.out, other) if isinstance(other, Tensor) else None
        if source is None or weight is None or not isinstance(kept, Tensor):
            continue
        old, part, goal = sample(kept), sample(other), sample(source.to(event.out.dtype))
        if old is None or part is None or goal is None or not last.shape == old.shape == part.shape == goal.shape:
            continue
        goal, part = goal.float(), (-weight if event.name == "sub" else weight) * part.float()
        for whole in (goal, goal - last):
            share = _share(part, whole, event.out.dtype)
            if share is not None and 0 < share <= MOST and bool((old.abs() >= (1 - 1.1 * MOST) * last.abs()).all()):
                return goal, share, source.data_ptr()
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


def _computed_from(audit: Recorder, target: Tensor, other: Tensor) -> bool:
    """Whether one tensor was computed from another."""
    own = audit.lineage.get(target)
    return own is not None and any(node is own for node in _ancestors(audit, other))


def follows(audit: Recorder, target: Tensor, other: Tensor) -> bool:
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


def trained(audit: Recorder) -> set[int]:
    """Where parameters are that are trained, with an optimizer or by hand."""
    held = (p for met in audit.state(Optimizers) for p in met.watched.parameters())
    with_gradients = (t for _, t in _tensors_of(audit) if t.requires_grad and t.is_leaf and t.grad is not None)
    return {tensor.data_ptr() for tensors in (held, with_gradients) for tensor in tensors}


def origin_of(audit: Recorder, mean: Mean) -> tuple[str, ...]:
    """The lines that an average has its dtype from; none of a clone of a parameter, which has those of that one."""
    made = mean.made
    if made is None or (made.named and all(tensor.data_ptr() != mean.place for _, tensor in _tensors_of(audit))):
        return ()
    return made.target()


def names_of(audit: Recorder, means: Iterable[Mean]) -> list[str]:
    """What the averages follow, else what they are called themselves, else what they look like."""
    known = {tensor.data_ptr(): name for name, tensor in _tensors_of(audit) if tensor.numel()}
    shapes = (f"tensor{list(mean.shape)}" for mean in means)
    names = (known.get(mean.source) or known.get(mean.place) or mean.name for mean in means)
    return list(dict.fromkeys(name or shape for name, shape in zip(names, shapes, strict=True)))
