"""DG210 loss-outside-autocast."""

import torch
from torch import Tensor

from .._kit import HALF, Op, Recorder, Rule, Severity, name_of, on

RULE = Rule(
    "DG210",
    "loss-outside-autocast",
    Severity.WARNING,
    summary="A half-precision loss is computed where autocast has ended.",
    says="`{what}` gets {dtype}, which left an autocast region at {born}: the loss is {dtype}, in the region float32",
    fix="compute the loss inside the region, or from `.float()` of what leaves it",
    why=(
        "Autocast runs loss functions in float32. What it has computed stays in half precision when the region ends, "
        "and outside of it a loss function returns the dtype that it gets: in bfloat16 a loss of 6 has a spacing of "
        "0.03, so the numbers of many steps are equal, and its gradient has three digits."
    ),
    safe=("cast_operands",),
    sources=(
        "https://docs.pytorch.org/docs/stable/amp.html#cpu-ops-that-can-autocast-to-float32",
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#typical-mixed-precision-training",
    ),
)

_LOSSES = (  # those that autocast runs in float32, as torch dispatches them
    "nll_loss_forward nll_loss2d_forward mse_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits "
    "binary_cross_entropy soft_margin_loss multi_margin_loss multilabel_margin_loss_forward"
).split()


@on("after", RULE, ops=_LOSSES)
def computed(event: Op, audit: Recorder) -> None:
    out: Tensor = event.out if isinstance(event.out, Tensor) else event.out[0]
    trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in event.inputs)
    node = audit.lineage.get(out) if trains and out.dtype in HALF else None
    if node is None or event.autocast or event.backward:
        return
    left = next((one for one in node.ancestors(own_dtype=True) if one.cause == "autocast"), None)
    if left is not None:
        facts = {"what": event.what, "dtype": name_of(out.dtype), "born": str(left.site)}
        audit.find(
            RULE, event.site, module=event.module, op=event.name, facts=facts, from_dtype=out.dtype,
            to_dtype=torch.float32, origin=tuple(map(str, node.line())),
        )  # fmt: skip
