"""DG209 region-left-open."""

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch

from ..._engine.watch.sites import site_of, user_wrote
from .._kit import Finding, Op, Recorder, Rule, Severity, Site, around, on

RULE = Rule(
    "DG209",
    "region-left-open",
    Severity.WARNING,
    summary="A generator or a function leaves its autocast region open.",
    says="`{what}` in {function} is open {since}: {place} runs under autocast{harm}",
    fix="{advice}",
    why=(
        "`with torch.autocast(...)` switches a thread, and a generator that yields inside it hands the switch to its "
        "caller: until the next item everything there is cast too. A generator of `contextlib.contextmanager` is meant "
        "to do that, and is no finding. A function that enters a region and never leaves it, as an `__init__` with "
        "`self.amp.__enter__()`, switches the whole program; where that is meant, it is right, so it is an info. It "
        "is a warning where a line that runs under autocast for this reason alone spoils values (DG105, DG9)."
    ),
    safe=("region_per_item",),
    sampled=True,
    sources=("https://docs.pytorch.org/docs/stable/amp.html#torch.autocast", "https://peps.python.org/pep-0568/"),
)


_HARMS = "DG105", "DG9"  # rules that tell of values
_EACH = "leave the region before `yield`: enter it anew for each item"
_WITH = "enter it with `with` around what is to be cast; leave it, where the whole program is"


@dataclass
class Region:
    """A region that is open, and the call that has entered it."""

    frame: int  # its id
    code: CodeType
    site: Site
    outside: Op | None = None  # what autocast has cast when that call was over
    lines: set[tuple[str, int]] = field(default_factory=set)  # at which it has cast then
    inside: set[tuple[str, int]] = field(default_factory=set)  # and before


@dataclass
class Regions:
    """By the id of each `torch.autocast`."""

    open: dict[int, Region] = field(default_factory=dict)


@around(torch.autocast, "__enter__", rule=RULE)
def _enters(audit: Recorder, original: Callable[..., Any], self: Any) -> Any:
    before = audit.autocast()
    result = original(self)
    if not before:
        audit.guarded(_remember, audit, self)
    return result


def _remember(audit: Recorder, region: Any) -> None:
    frame = next((one for one in _frames(sys._getframe()) if user_wrote(one)), None)
    if frame is None or frame.f_code.co_name == "<module>" or frame.f_back is None:
        return
    if user_wrote(frame.f_back) and region._enabled:  # else contextlib, a fixture, a loader asks for the next
        audit.state(Regions).open[id(region)] = Region(id(frame), frame.f_code, site_of(frame))


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
    for region in regions.values():
        over = (region.frame, region.code) not in running
        (region.lines if over else region.inside).add(event.site.key)
        if over and region.outside is None:
            region.outside = event
            if region.code.co_flags & inspect.CO_GENERATOR and audit.due("DG209", region.site):
                _find(audit, region, event, "generator", "while the generator waits", _EACH)


@on("end", RULE)
def never_left(audit: Recorder) -> None:
    for region in audit.state(Regions).open.values():
        if region.outside is None or region.code.co_flags & inspect.CO_GENERATOR:
            continue
        spoilt = [finding for finding in audit.findings.rows() if _spoils(finding, region.lines - region.inside)]
        for finding in spoilt:
            finding.fix += f"; autocast is on there since {region.site}"
        harm = "".join(f", and {one.spots[0].path}:{one.line} spoils values ({one.rule})" for one in spoilt[:1])
        severity = RULE.severity if spoilt else Severity.INFO
        _find(audit, region, region.outside, "function", "to the end", _WITH, severity, harm)


def _spoils(finding: Finding, lines: set[tuple[str, int]]) -> bool:
    """Whether values were spoilt at one of these lines, or by what was rounded there."""
    if not finding.rule.startswith(_HARMS) or finding.severity == Severity.INFO.value:
        return False
    return any((spot.file, spot.line) in lines for spot in finding.spots)


def _find(
    audit: Recorder, region: Region, event: Op, kind: str, since: str, advice: str, severity: Severity | None = None,
    harm: str = "",
) -> None:  # fmt: skip
    function = f"{kind} `{region.code.co_name}`"
    what = region.site.source.rstrip(":")
    facts = {
        "what": what,
        "function": function,
        "since": since,
        "place": str(event.site),
        "advice": advice,
        "harm": harm,
    }
    audit.find(RULE, region.site, severity=severity, module=event.module, op="autocast", facts=facts)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
