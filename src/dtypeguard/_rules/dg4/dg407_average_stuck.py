"""DG407 average-stuck.

An average is known from how it is written: it takes nine tenths or more of itself, and the rest from elsewhere. Whether
it moves is seen in samples, as in `amp.watch(averaged=...)`, at updates that are powers of two.
"""

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ..._core.base.dtypes import HALF
from ..._core.base.errors import plain
from ..._core.base.modules import root_of
from ..._engine.watch.events import Op, on
from ..._engine.watch.ledger import Add
from ..._engine.watch.patches import around
from ..._engine.watch.recorder import Recorder
from ..._engine.watch.rule import Rule, Severity
from ..._engine.watch.sites import Site
from ..._show.text import percent
from ...amp._average import FAR, Track, Tracks
from ...amp._names import named
from ...amp._tensors import sample
from ..steps import Steps, unseen
from ._averages import (
    MOST,
    OPS,
    PLACES,
    TENSORS,
    Averages,
    Goal,
    Line,
    Mean,
    chain_of,
    follows,
    form,
    goal_of,
    made_anew,
    names_of,
    number,
    origin_of,
    trained,
)  # fmt: skip

RULE = Rule(
    "DG407",
    "average-stuck",
    Severity.WARNING,
    summary="A half-precision average of weights no longer moves.",
    says=(
        "the average of {names} is {found} and does not move: {share} of the elements that differ from "
        "the model stayed as they were in {steps} steps"
    ),
    at_birth=True,
    fix="keep the average in float32, whatever the model's dtype",
    why=(
        "An average with decay 0.999 moves by a thousandth of the difference. That is less than the "
        "spacing of bfloat16 (1/256) and float16 (1/1024) around most weights, so it stays at its first "
        "value for ever."
    ),
    unsafe=(
        "widen_rounding",
        "widen_origins",
    ),
    explains=("DG903", "DG107"),
    converts=False,
    sampled=True,
    sources=("https://github.com/d8ahazard/sd_dreambooth_extension/issues/1417",),
)

_LITTLE = 0.01  # share of what is new, with which a half average cannot follow, however near
_HALF = 0.55  # of a spacing: what is less is rounded away
_PART = 0.25  # of the sample, that must be away from what it follows
Find = Callable[[Mean], Goal | None]


@dataclass(frozen=True, slots=True)
class Averaging:
    """An update of all at once."""

    site: Site
    nearest: bool  # rounded
    module: str | None = None
    name: str = "averaging"


def _updated(audit: Recorder, event: Op | Averaging, mean: Mean, line: Line, now: Tensor, goal: Find) -> None:
    """An average was updated; it is looked at when the number of its updates is a power of two."""
    mean.updates += 1
    if mean.updates & (mean.updates - 1):
        return
    mean.made = mean.made or audit.lineage.get(now)
    values, found = sample(now), goal(mean)
    if values is not None and found is not None and values.shape == found[0].shape:
        source, share, mean.source = found
        spacings = 1 if share <= _LITTLE else FAR, _HALF / share if share else math.inf
        mean.look(values, source, mean.updates, *spacings)
    if mean in line:
        _report_stuck(audit, event, line)


# ---------------------------------------------------------------- by hand


@on("after", RULE, ops=OPS)
def written(event: Op, audit: Recorder) -> None:
    targets, others = event.args[0], event.args[1] if len(event.args) > 1 else None
    if isinstance(targets, Tensor):
        targets, others = (targets,), (others,)
    elif not isinstance(others, (list, tuple)):
        others = (others,) * len(targets)
    averages = audit.state(Averages)
    if not targets or targets[0].dtype not in HALF or event.backward:
        return
    if averages.updating or audit.state(Steps).inside:
        return
    for target, other in list(zip(targets, others, strict=False))[:TENSORS]:
        if target.dtype not in HALF:
            continue
        if event.name in ("mul_", "_foreach_mul_"):
            decay = number(other)
            if decay is not None and 1 - MOST <= decay < 1:
                if len(averages.decays) > PLACES:
                    averages.decays.clear()
                averages.decays[target.data_ptr()] = decay
        elif isinstance(other, Tensor) and other.shape == target.shape:
            written_as = form(audit, event, target, other, averages.decays.pop(target.data_ptr(), None))
            if written_as is None or (target.requires_grad and not follows(audit, target, other)):
                continue
            known = averages.mean(event.site, target)
            if known is not None:
                _updated(audit, event, *known, target, functools.partial(goal_of, audit, target, other, *written_as))


# ---------------------------------------------------------------- bound anew


@on("summed", RULE)
def bound_anew(event: Op, audit: Recorder) -> None:
    """`ema[k] = d * ema[k] + (1 - d) * w`."""
    averages, out, node = audit.state(Averages), event.out, audit.lineage.get(event.out)
    if node is None or averages.updating or audit.state(Steps).inside:
        return
    chain = chain_of(averages, event, node)
    if chain is None:
        return
    mean, line = chain.mean, averages.line(event.site)

    def goal(mean: Mean) -> Goal | None:
        found = None if chain.last is None else made_anew(audit, event, chain.last)
        if found is not None and mean not in line and line.takes(mean):
            node.owes((chain,))
        return found if mean in line else None

    _updated(audit, event, mean, line, out, goal)
    now = None if mean.updates & (mean.updates + 1) else sample(out)
    chain.last = None if now is None else now.float()


# ---------------------------------------------------------------- AveragedModel


@around(AveragedModel, "update_parameters", rule=RULE, always=True)
def _averaging(
    audit: Recorder, original: Callable[..., Any], self: Any, model: nn.Module, *args: Any, **kwargs: Any
) -> Any:
    averages = audit.state(Averages)
    functions = (getattr(self, "avg_fn", None), getattr(self, "multi_avg_fn", None))
    own = all(getattr(function, "__module__", "torch.").startswith("torch.") for function in functions)
    averages.updating += 1
    try:
        with unseen(audit) if own else contextlib.nullcontext():
            result = original(self, model, *args, **kwargs)
    finally:
        averages.updating -= 1
    if audit.records_here:
        audit.guarded(_look_at_means, audit, averages, Averaging(audit.user(), own), self, model)
    return result


def _look_at_means(
    audit: Recorder, averages: Averages, event: Averaging, averaged: AveragedModel, model: nn.Module
) -> None:
    sources = {name: parameter for parameter, name in named(root_of(model))}
    for tensor, name in named(root_of(averaged.module)):
        known = averages.mean(event.site, tensor, name) if name in sources and tensor.dtype in HALF else None
        if known is not None:
            _updated(audit, event, *known, tensor, functools.partial(_goal_of, sources[name]))


def _goal_of(source: Tensor, mean: Mean) -> Goal | None:
    theirs = sample(source)
    return None if theirs is None else (theirs, 0.0, source.data_ptr())


# ---------------------------------------------------------------- the verdict


def _report_stuck(audit: Recorder, event: Op | Averaging, line: Line) -> None:
    """Once most tensors of a line were looked at equally often."""
    step = max(mean.updates for mean in line)
    done = [mean for mean in line if mean.updates == step]
    if len(done) < 0.8 * len(line) or line.said:
        return
    stuck, share = line.still() if isinstance(event, Op) or event.nearest else line.stuck(step)
    if not stuck or sum(mean.differ for mean in stuck) < _PART * sum(mean.sampled for mean in done):
        return
    if not trained(audit).isdisjoint(mean.place for mean in stuck):
        return
    line.said = True
    dtype = stuck[0].dtype
    facts = {"found": plain(dtype), "share": percent(share), "steps": step}
    audit.find(
        RULE, event.site, facts=facts, module=event.module, op=event.name, parameters=names_of(audit, stuck),
        from_dtype=dtype, to_dtype=torch.float32, origin=origin_of(audit, stuck[0]),
    )  # fmt: skip


@on("averaged", RULE)
def looked(tracks: Tracks[Track], step: int, add: Add) -> None:
    """An average that a watch was given."""
    stuck, share = tracks.stuck(step)
    if stuck:
        facts = {"found": plain(stuck[0].dtype), "share": percent(share), "steps": step}
        names, dtype = [track.name for track in stuck], stuck[0].dtype
        add(RULE, (), "an average", facts, parameters=names, from_dtype=dtype, op="averaging")


@on("end", RULE)
def forget(audit: Recorder) -> None:
    averages = audit.state(Averages)
    for known in (averages.means, averages.lines, averages.chains):
        known.clear()
