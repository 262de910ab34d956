"""DG310 unscale-twice."""

from torch.amp.grad_scaler import OptState

from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._scaling import Driven, Scaling

RULE = Rule(
    "DG310",
    "unscale-twice",
    Severity.ERROR,
    summary="`unscale_` is called twice for one optimizer in a step.",
    says="`unscale_` is called a second time on {optimizer} {since}",
    fix="{advice}",
    why=(
        "Gradients that are accumulated after `unscale_` are scaled and those before are not. PyTorch "
        "refuses the second call; leaving it out would mix both."
    ),
    safe=("update_always", "unscale_once"),
    sources=(
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation",
        "https://github.com/huggingface/transformers/issues/23935",
    ),
)
_ONCE = (
    "call `update` in each iteration, also in one that skips `step`; with gradient accumulation call `unscale_`, "
    "clip, `step` and `update` once, after the last micro-batch"
)
_ALREADY = (
    "delete this call: the gradients are unscaled already; or give it the optimizer whose gradients it is meant for"
)


@on("unscale", RULE)
def again(driven: Driven, stage: OptState, scaling: Scaling) -> None:
    if stage is OptState.UNSCALED:
        losses = f"{driven.losses} scaled {'loss' if driven.losses == 1 else 'losses'}"
        since = f"({losses} since its last step, and no `update()` between)"
        facts = {"optimizer": driven.watched.title, "since": since, "advice": _ONCE if driven.losses > 1 else _ALREADY}
        scaling.find(RULE, "GradScaler.unscale_", facts)
