"""DG306 half-loss."""

from torch import Tensor

from ..._core.base.dtypes import HALF, name_of
from ..._core.base.errors import plain
from ..._core.base.frames import installed
from ..._engine.watch.events import on
from ..._engine.watch.lineage import Node
from ..._engine.watch.rule import Rule, Severity
from ..._engine.watch.spots import Step
from ...amp._scaling import Scaling

RULE = Rule(
    "DG306",
    "half-loss",
    Severity.WARNING,
    summary="The loss is half precision when the GradScaler scales it.",
    says="the loss given to `scaler.scale` is {found}",
    fix="compute the loss in float32: {how}",
    why=(
        "The scaled loss and the first gradient are computed in the loss's own dtype. In float16 a scale "
        "of 65536 is infinite already, and in bfloat16 a loss has three digits."
    ),
    at_birth=True,
    safe=("float32_loss",),
    sampled=True,
    sources=("https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference",),
)


@on("scaled", RULE)
def in_half(losses: list[Tensor], detached: bool, scaling: Scaling) -> None:
    half = next((loss for loss in losses if loss.dtype in HALF), None)
    if half is not None:
        node = scaling.node_of(half)
        facts, fields = {"found": plain(half.dtype), "how": _how(node)}, {"from_dtype": half.dtype}
        origin = () if node is None else (Step(str(node), node.site, f"the loss becomes {name_of(half.dtype)} here"),)
        scaling.find(RULE, "GradScaler.scale", facts, origin=origin, **fields)


def _how(node: Node | None) -> str:
    """What to write where the loss is computed, if that is known."""
    code = "" if node is None else node.site.expression
    if node is None or not code or node.named or installed(node.site.file) is not None:
        return "`criterion(output.float(), target)`"
    narrows = node.op == "_to_copy" and node.parents and node.parents[0].dtype not in HALF
    return f"leave out the cast of `{code}`" if narrows else f"`.float()` on the model's output in `{code}`"
