"""The absolute bars, and how slow this machine is against the one they were set on."""

from dataclasses import dataclass
from typing import Any

import models
import peers
import torch
from report import Row, Table, at_most, duration, times
from timing import geometric_mean, interleave
from torch import Tensor, nn

MS = 1e6  # all times are in ns
GUARD, PRE_HOOK = 330, 1_190
REPAIR = 2_000
CACHE = 15_000
SUBCLASS = 4_000
DECORATE, DECORATE_PEER = 200 * MS, 713 * MS
IMPORT, IMPORT_PEER = 15 * MS, 37 * MS

# ns on the machine that the bars were set on
REFERENCE = {
    "`x.dtype`": 33,
    "`x.shape`": 67,
    "`x.device`": 42,
    "`linear.weight`": 401,
    "`next(linear.parameters())`": 1_384,
    '`torch.is_autocast_enabled("cpu")`': 103,
    "a forward pre-hook": PRE_HOOK,
}


@dataclass
class Context:
    """What the topics share: the peers that import here, why others do not, and the pace of this machine."""

    peers: list[peers.Peer]
    absent: dict[str, str]
    slowness: float = 1.0

    def absolute(self, what: str, ns: float, limit: float, relative: str = "") -> list[Row]:
        """A time held to an absolute bar: as measured, and as it would be at the reference machine's pace."""
        bar, paced = at_most(limit, duration(limit)), ns / self.slowness
        return [
            Row(what, duration(ns), relative, bar, ns),
            Row(f"{what}, at the reference's pace", duration(paced), f"÷ {self.slowness:.2f}", bar, paced),
        ]


def against(what: str, ratio: float, ours: float, theirs: float) -> Row:
    """The same bar free of scale: what it allowed, over what the peer took on the reference machine."""
    return Row(what, "", times(ratio), at_most(ours / theirs, times(ours / theirs)), ratio)


def pace(context: Context) -> Table:
    """How this machine compares with the one that the absolute bars were set on."""
    linear, x = nn.Linear(8, 8), torch.zeros(4, 8)

    def nothing(value: Any) -> Any:
        return value

    def dtype(x: Tensor) -> torch.dtype:
        return x.dtype

    def shape(x: Tensor) -> torch.Size:
        return x.shape

    def device(x: Tensor) -> torch.device:
        return x.device

    def weight(linear: nn.Linear) -> Tensor:
        return linear.weight

    def first(linear: nn.Linear) -> Tensor:
        return next(linear.parameters())

    def autocast(device: str) -> bool:
        return torch.is_autocast_enabled(device)

    calls: list[Any] = [(dtype, (x,)), (shape, (x,)), (device, (x,)), (weight, (linear,)), (first, (linear,))]
    calls += [(autocast, ("cpu",)), (models.hooked(models.Pass()), (x,))]
    cases = {"nothing": (nothing, (x,)), "bare": (models.Pass(), (x,)), **dict(zip(REFERENCE, calls, strict=True))}
    samples = interleave(cases, 3)
    measured = {name: samples.extra(name, "bare" if "hook" in name else "nothing") for name in REFERENCE}
    context.slowness = geometric_mean([measured[name] / ns for name, ns in REFERENCE.items()])
    about = "Absolute bars were set on another machine. The geometric mean of these ratios scales them to this one."
    table = Table("The machine", about, ("what", "here", "here ÷ there"))
    table.rows = [Row(name, duration(ns), times(ns / REFERENCE[name])) for name, ns in measured.items()]
    table.rows.append(Row("geometric mean", "", times(context.slowness)))
    return table
