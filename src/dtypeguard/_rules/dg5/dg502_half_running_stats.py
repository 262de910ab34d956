"""DG502 half-running-stats."""

import torch
from torch.nn.modules.batchnorm import _NormBase

from .._kit import HALF, Call, Recorder, Rule, Severity, name_of, on, size_of

RULE = Rule(
    "DG502",
    "half-running-stats",
    Severity.WARNING,
    summary="A trained norm keeps running statistics in half precision.",
    says="`{buffer}` of {module} is {dtype}, and training updates it by {momentum:g} of the difference",
    fix=(
        "keep norms in float32: `module.float()` on them after the model was converted (a float32 norm "
        "takes half inputs)"
    ),
    why=(
        "A running average moves by a part of the difference, and stands still where that is less than half the "
        "spacing of its dtype: in bfloat16 at 2 % from the mean with a momentum of 0.1, at 20 % with 0.01."
    ),
    at_birth=True,
    unsafe=("norms_in_float32",),
    converts=False,
    sources=("https://github.com/pytorch/pytorch/issues/102922",),
)

_NEAR = 0.02  # of a statistic, which no output feels


@on("entered", RULE)
def running_statistics(call: Call, audit: Recorder) -> None:
    module = call.module
    if not isinstance(module, _NormBase) or not module.training or not module.track_running_stats:
        return
    buffers = module._buffers
    half = {name: buffers.get(name) for name in ("running_mean", "running_var")}
    name, buffer = next(((name, b) for name, b in half.items() if b is not None and b.dtype in HALF), ("", None))
    if buffer is None or module.momentum == 0:
        return
    batches, momentum = buffers.get("num_batches_tracked"), module.momentum
    if momentum is None:  # the average of all
        momentum = 1 / (1 if batches is None else int(batches) + 1)
    near = torch.finfo(buffer.dtype).eps / 4 / momentum <= _NEAR  # half the spacing of numbers, on the average
    facts = {"buffer": name, "module": call.path, "dtype": name_of(buffer.dtype), "momentum": momentum}
    audit.find(
        RULE, audit.here(), module=call.path, op=type(module).__name__, facts=facts,
        severity=Severity.INFO if near else None,
        from_dtype=buffer.dtype, to_dtype=torch.float32, bytes=size_of(buffer), origin=_converted(audit, buffer),
    )  # fmt: skip


def _converted(audit: Recorder, buffer: torch.Tensor) -> tuple[str, ...]:
    """Where the module was converted, which is the line to change."""
    node = audit.lineage.get(buffer)
    if node is not None and node.named and node.parents:
        node = node.parents[0]
    return () if node is None else node.line()
