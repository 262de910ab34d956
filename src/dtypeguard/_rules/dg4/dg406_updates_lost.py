"""DG406 updates-lost."""

import math
import weakref
from typing import Any

import torch
from torch import Tensor

from ..._core.base.dtypes import HALF
from ..._core.base.errors import plain
from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ..._engine.watch.sites import Site, user
from ..._show.text import percent
from ...amp._optimizer import PERIOD, Group, WatchedOptimizer, is_torchs
from ...amp._tensors import is_copy, sample, spread

RULE = Rule(
    "DG406",
    "updates-lost",
    Severity.WARNING,
    summary="Updates are too small for the parameters' dtype.",
    says=(
        "{share} of the elements of {found} parameters with a non-zero gradient did not move in a step "
        "of {optimizer} (lr={lr:g}){looks}: {names}{sampled}"
    ),
    fix=(
        "keep float32 parameters and use autocast, or an optimizer with float32 master weights or stochastic rounding"
    ),
    why=(
        "bfloat16 has 8 bits of significand: an update smaller than 1/512 of the weight is rounded away, "
        "each step anew, and the loss stops falling for no visible reason."
    ),
    at_birth=True,
    unsafe=("float32_parameters",),
    sampled=True,
    sources=(
        "https://arxiv.org/abs/2010.06192",
        "https://github.com/pytorch/torchtitan/issues/2881",
        "https://github.com/pytorch/pytorch/issues/191763",
    ),
)


_SAMPLED = 8  # parameters whose elements are looked at in one step
_LOST = 0.7  # share of elements that did not move: a warning; a model that learns in bfloat16 loses 5 to 30 %
_MANY = 0.5  # listed as information
_STREAK = 3  # looks in a row
_BEGUN = 8  # steps; momentum has to build up, and some optimizers start slowly
_SURE = 32  # steps until there were so many looks


@on("stepping", RULE)
def keep(watched: WatchedOptimizer) -> None:
    if watched.now:
        for group in watched.groups():
            _lost_of(group).keep(group)


@on("stepped", RULE)
def compare(watched: WatchedOptimizer) -> None:
    skipped = getattr(watched.optimizer, "found_inf", None)  # of a fused step, which skips by itself
    if not watched.now or (skipped is not None and bool(skipped)):
        return
    for group in watched.groups():
        share, parameters = _lost_of(group).compare(group)
        if share >= _MANY and parameters:
            dtype = parameters[0].dtype
            facts = _facts_of(group, share, dtype, "")
            # Somebody else's optimizer may keep what it could not write: it is sure only where nothing moved at all.
            # Norms' weights stay at 1 in every model that is bfloat16 throughout, and it learns nevertheless.
            minor = all(p.ndim < 2 for p in parameters) and any(p.ndim > 1 for p in watched.parameters())
            sure = share >= (_LOST if is_torchs(watched.optimizer) else 1.0) and not minor
            severity = None if sure else Severity.INFO
            origin = watched.since(parameters[0])
            group.add(RULE, facts, parameters, from_dtype=dtype, severity=severity, origin=origin)


@on("over", RULE)
def unsure(watched: WatchedOptimizer) -> None:
    """A short run says what it saw, and how long it takes to be sure."""
    for group in watched.groups():
        lost, half = _lost_of(group), _half(group)
        if lost.share >= _LOST and half and watched.steps < _SURE:
            looks = f", in {lost.looks} looks; {_SURE} steps are needed to be sure"
            facts, seen = _facts_of(group, lost.share, half[0].dtype, looks), spread(half, _SAMPLED)
            group.add(RULE, facts, seen, from_dtype=half[0].dtype, severity=Severity.INFO, site=lost.site)


def _facts_of(group: Group, share: float, dtype: torch.dtype, looks: str) -> dict[str, Any]:
    of = len(_half(group))
    sampled = f" ({_SAMPLED} of {of} parameters looked at)" if of > _SAMPLED else ""
    return {"share": percent(share), "found": plain(dtype), "lr": _rate_of(group), "looks": looks, "sampled": sampled}


def _half(group: Group) -> list[Tensor]:
    return [parameter for parameter in group.parameters() if parameter.dtype in HALF]


class Lost:
    """Elements of one group that do not move, from one look to the next.

    Attributes:
        looks: how many in a row saw elements that did not move, from the first step on.
        share: of the elements, at the last of them.
        site: the line that stepped then.
    """

    def __init__(self) -> None:
        self.looks, self.share = 0, 0.0
        self.site: Site | None = None
        self._kept: list[tuple[weakref.ref[Tensor], Tensor]] = []
        self._patient = False
        self._since = self._streak = 0
        self._lr, self._most = math.inf, 0.0

    def keep(self, group: Group) -> None:
        """Keep copies of small samples.

        With an optimizer that is not PyTorch's, the first ones are kept for two periods and more: stochastic rounding
        and master weights move an element in some of the steps only.
        """
        self._patient = not is_torchs(group.watched.optimizer)
        if self._patient and self._kept:
            return
        self._since = group.watched.steps
        half = [p for p in _half(group) if not _has_master(p, group.watched)]
        samples = [(parameter, sample(parameter)) for parameter in spread(half, _SAMPLED)]
        self._kept = [(weakref.ref(p), values.clone()) for p, values in samples if values is not None]

    def compare(self, group: Group) -> tuple[float, list[Tensor]]:
        """The share of elements with a gradient that did not move, and of which parameters; 0 if it is too soon."""
        kept = [(parameter, values) for ref, values in self._kept if (parameter := ref()) is not None]
        if not self._patient:
            self._kept = []
        rate, step = _rate_of(group), group.watched.steps
        rate = 1.0 if math.isnan(rate) else rate
        # A warm-up begins with updates that are lost, and a decay ends with them: neither harms.
        steady = rate <= self._lr * 1.0001 and rate >= self._most / 2
        self._lr, self._most = rate, max(rate, self._most)
        if not kept or not rate or (self._patient and step - self._since < 2 * PERIOD):
            return 0.0, []
        stuck = [(parameter, part) for parameter, values in kept if (part := _still(parameter, values)) is not None]
        sizes = [parameter.numel() for parameter, _ in stuck]
        share = sum(size * part for size, (_, part) in zip(sizes, stuck, strict=True)) / max(sum(sizes), 1)
        lost = steady and share >= _MANY
        self.site = user() if lost else None
        self.looks, self.share = self.looks + 1 if lost else 0, share if lost else 0.0
        if step < _BEGUN:
            return 0.0, []
        self._streak = self._streak + 1 if lost else 0
        return (share, [p for p, part in stuck if part >= _MANY]) if self._streak >= _STREAK else (0.0, [])


def _lost_of(group: Group) -> Lost:
    lost: Lost = group.watched.kept.setdefault((RULE.id, group.number), Lost())
    return lost


def _still(parameter: Tensor, was: Tensor) -> float | None:
    """The share of the elements with a gradient that are as they were."""
    now, gradient = sample(parameter), None if parameter.grad is None else sample(parameter.grad)
    if now is None or gradient is None or not now.shape == gradient.shape == was.shape or now.device != was.device:
        return None
    moves = gradient != 0
    still, most = torch.stack([(moves & (now == was)).sum(), moves.sum()]).tolist()
    return still / most if most else None


def _rate_of(group: Group) -> float:
    """The learning rate of a group, NaN where it is no number (Adafactor finds its own)."""
    rate = group.options.get("lr")
    if isinstance(rate, (int, float)) or (isinstance(rate, Tensor) and rate.numel() == 1 and not rate.is_meta):
        return float(rate)
    return math.nan


def _has_master(parameter: Tensor, watched: WatchedOptimizer) -> bool:
    """Whether the optimizer keeps a wider copy of a parameter, which takes the updates that the parameter cannot."""
    state: Any = watched.state_of(parameter).values()
    return any(isinstance(value, Tensor) and is_copy(value, parameter) for value in state)
