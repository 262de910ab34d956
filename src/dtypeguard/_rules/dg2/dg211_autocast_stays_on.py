"""DG211 autocast-stays-on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .._kit import HALF, Op, Recorder, Rule, Severity, Site, around, name_of, on

RULE = Rule(
    "DG211",
    "autocast-stays-on",
    Severity.WARNING,
    summary="A region that switches autocast off names another device.",
    says="`{what}` leaves autocast for {device} on: `{operation}` at {place} runs in {dtype}",
    fix="switch it off for the device of the tensors, too: `torch.autocast({device!r}, enabled=False)`",
    why=(
        "Each device type has an autocast of its own. `torch.autocast('cuda', enabled=False)` switches off that of "
        "CUDA alone: where a CPU or another accelerator has a region around it, the block that was to be computed in "
        "float32 is cast there as before."
    ),
    safe=("region_of_device",),
    sources=("https://docs.pytorch.org/docs/stable/amp.html#torch.autocast",),
)


@dataclass
class Off:
    """A block in which autocast is off, for a device.

    Attributes:
        on: the device types whose regions around it stay on.
        cast: what autocast has cast in it for one of these, first.
    """

    site: Site
    module: str | None
    on: set[str]
    cast: tuple[Op, str] | None = None


@dataclass
class Blocks:
    """By the id of each `torch.autocast`, and those that are over by their lines."""

    open: dict[int, Off] = field(default_factory=dict)
    rows: dict[Site, Off] = field(default_factory=dict)


@around(torch.autocast, "__enter__", rule=RULE)
def _enters(audit: Recorder, original: Callable[..., Any], self: Any) -> Any:
    result = original(self)
    audit.guarded(_remember, audit, self)
    return result


def _remember(audit: Recorder, region: Any) -> None:
    blocks = audit.state(Blocks)
    for block in blocks.open.values():
        block.on.discard(region.device)  # whose autocast this one switches
    enabled = {kind for kind, is_on in audit.local.regions.items() if is_on}
    if not region._enabled and enabled:
        blocks.open[id(region)] = Off(audit.here(), audit.module(), enabled)


@around(torch.autocast, "__exit__", rule=RULE)
def _leaves(audit: Recorder, original: Callable[..., Any], self: Any, *error: Any) -> Any:
    block = audit.state(Blocks).open.pop(id(self), None)
    if block is not None and block.cast is not None:
        audit.state(Blocks).rows.setdefault(block.site, block)
    return original(self, *error)


@on("cast", RULE)
def computed(event: Op, audit: Recorder) -> None:
    blocks = audit.state(Blocks).open
    if blocks and event.kind == "autocast" and event.out.dtype in HALF:
        for block in blocks.values():
            if block.cast is None and event.out.device.type in block.on:
                block.cast = event, event.out.device.type


@on("end", RULE)
def tell(audit: Recorder) -> None:
    for site, block in audit.state(Blocks).rows.items():
        if block.cast is not None:
            event, device = block.cast
            facts = {
                "what": site.source.rstrip(":"), "device": device, "operation": event.what,
                "place": str(event.site), "dtype": name_of(event.out.dtype),
            }  # fmt: skip
            audit.find(RULE, site, module=block.module, op="autocast", facts=facts)
