"""DG507 updates-rounded."""

from collections.abc import MutableMapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..._core.base.dtypes import HALF
from ..._core.base.modules import inside, tensors_below
from .._kit import Conversion, Recorder, Rule, Severity, listed, name_of, on, size_of

RULE = Rule(
    "DG507",
    "updates-rounded",
    Severity.WARNING,
    summary="Parameters are rounded to half precision between updates.",
    says=(
        "{names} of {module}: rounded to {dtype} again, after a conversion back to {was} and an update, whose digits "
        "are lost"
    ),
    fix="convert a copy: `copy.deepcopy({model}).to(torch.{dtype})`; or run the model as it is under `torch.autocast`",
    why=(
        "`Module.half()` rounds the parameters themselves, and `.float()` does not bring their digits back. A "
        "validation that converts the model, or its moving average, and converts it back after it, rounds all that was "
        "learned since the last one. An average that moves by less than half of the spacing stands still."
    ),
    unsafe=("convert_copy",),
    converts=False,
    sources=("https://github.com/ultralytics/ultralytics/issues/24731",),
)


@dataclass
class Trip:
    """What has become of one parameter."""

    was: torch.dtype
    back: int | None = None  # its version, when it was converted back


@dataclass
class Trips:
    of: MutableMapping[Tensor, Trip] = field(default_factory=WeakIdKeyDictionary)


@on("converted", RULE)
def converted(event: Conversion, audit: Recorder) -> None:
    trips, rounded = audit.state(Trips).of, []
    for path, _, kind, name, tensor in tensors_below(event.model):
        was = event.before.get((path, name))
        if kind != "parameter" or was is None or was is tensor.dtype:
            continue
        trip = trips.get(tensor)
        if tensor.dtype not in HALF:
            if trip is not None:
                trip.back = tensor._version
        elif trip is None or trip.was is not was:
            trips[tensor] = Trip(was)
        elif trip.back is not None and tensor._version > trip.back:
            trip.back = None  # a parameter has several names where weights are tied
            rounded.append((inside(path, name), tensor, was))
    if rounded:
        names, (_, first, was) = [name for name, _, _ in rounded], rounded[0]
        facts = {
            "names": listed(names), "module": event.root, "dtype": name_of(first.dtype), "was": name_of(was),
            "model": event.site.expression.rpartition(f".{event.name}(")[0] or "model",
        }  # fmt: skip
        audit.find(
            RULE, event.site, facts=facts, module=event.root, op=f"Module.{event.name}", from_dtype=was,
            to_dtype=first.dtype, parameters=names, bytes=sum(size_of(tensor) for _, tensor, _ in rounded),
        )  # fmt: skip
