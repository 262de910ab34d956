"""DG209 region-left-open."""

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch

from ..._engine.watch.sites import site_of, user_wrote
from .._kit import Op, Recorder, Rule, Severity, Site, around, on

RULE = Rule(
    "DG209",
    "region-left-open",
    Severity.WARNING,
    summary="A generator yields while its autocast region is open.",
    says="`{what}` in generator `{generator}` is open while the generator waits: {place} runs under autocast",
    fix="leave the region before `yield`: enter it anew for each item",
    why=(
        "`with torch.autocast(...)` switches a thread, and a generator that yields inside it hands the switch to its "
        "caller: until the next item everything there is cast too. A generator of `contextlib.contextmanager` is meant "
        "to do that, and is no finding."
    ),
    safe=("region_per_item",),
    sampled=True,
    sources=("https://docs.pytorch.org/docs/stable/amp.html#torch.autocast", "https://peps.python.org/pep-0568/"),
)


@dataclass
class Regions:
    """Those that generators have entered, by their ids: the frame's id, its code, and the line."""

    open: dict[int, tuple[int, CodeType, Site]] = field(default_factory=dict)


@around(torch.autocast, "__enter__", rule=RULE)
def _enters(audit: Recorder, original: Callable[..., Any], self: Any) -> Any:
    before = audit.autocast()
    result = original(self)
    if not before:
        audit.guarded(_remember, audit, self)
    return result


def _remember(audit: Recorder, region: Any) -> None:
    frame = next((one for one in _frames(sys._getframe()) if user_wrote(one)), None)
    if frame is None or not frame.f_code.co_flags & inspect.CO_GENERATOR or frame.f_back is None:
        return
    if user_wrote(frame.f_back) and region._enabled:  # else contextlib, a fixture, a loader asks for the next
        audit.state(Regions).open[id(region)] = id(frame), frame.f_code, site_of(frame)


@around(torch.autocast, "__exit__", rule=RULE)
def _leaves(audit: Recorder, original: Callable[..., Any], self: Any, *error: Any) -> Any:
    audit.state(Regions).open.pop(id(self), None)
    return original(self, *error)


@on("cast", RULE)
def computed(event: Op, audit: Recorder) -> None:
    regions = audit.state(Regions).open
    if not regions or event.kind != "autocast" or event.frame is None:
        return
    running = {(id(frame), frame.f_code) for frame in _frames(event.frame)}
    for frame, code, site in regions.values():
        if (frame, code) not in running and audit.due("DG209", site):
            facts = {"what": site.source.rstrip(":"), "generator": code.co_name, "place": str(event.site)}
            audit.find(RULE, site, module=event.module, op="autocast", facts=facts)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
