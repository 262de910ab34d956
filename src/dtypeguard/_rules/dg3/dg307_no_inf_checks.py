"""DG307 no-inf-checks."""

from torch import Tensor
from torch.amp.grad_scaler import OptState

from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._scaling import Driven, Scaling, unscales_itself

RULE = Rule(
    "DG307",
    "no-inf-checks",
    Severity.ERROR,
    summary="The GradScaler has no gradients to check for infinities.",
    says="{what}, so the scaler has no gradients to check",
    fix="call `{scaler_code}.{call}` {how}",
    why=(
        "`scaler.step` divides and checks the gradients of the optimizer's parameters. If none has one, "
        'PyTorch raises "No inf checks were recorded for this optimizer", which does not say that the loss '
        "was detached, or that the optimizer holds other parameters than those that the loss depends on. "
        "`scaler.update` needs such a check too, one at least since the last `update`."
    ),
    safe=("attached_loss", "zero_grad_first"),
    sources=(
        "https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers",
    ),
)


_SCALE = {
    "call": "scale(loss).backward()",
    "how": (
        "on a loss that depends on this optimizer's parameters: no `.detach()`, `.item()` or `torch.no_grad()` on its "
        "way"
    ),
}
_REPLACED = (
    "; if the model's parameters were replaced since (a new head, `load_state_dict(assign=True)`), build the optimizer "
    "after that"
)
_UPDATE = {"call": "update()", "how": "once in each iteration, after all optimizers have stepped with the scaler"}


@on("scaled", RULE)
def without_graph(losses: list[Tensor], detached: bool, scaling: Scaling) -> None:
    if detached and not scaling.graphs:  # else it may be for a log, and `step` will tell
        scaling.find(RULE, "GradScaler.scale", {"what": "the loss is detached", **_SCALE})


@on("step", RULE)
def without_gradients(driven: Driven, stage: OptState, scaling: Scaling) -> None:
    watched = driven.watched
    several = len(scaling.driven) > 1 and unscales_itself(watched.optimizer)  # torch lets one of several go without
    if stage is not OptState.STEPPED and not several and not watched.has_gradients():
        what = f"no parameter of {watched.title} has a gradient"
        how = _SCALE["how"] + _REPLACED * scaling.graphs
        scaling.find(RULE, "GradScaler.step", {"what": what, "optimizer": watched.title, **_SCALE, "how": how})


@on("unchecked", RULE)
def without_step(scaling: Scaling) -> None:
    if any(driven.watched.past for driven in scaling.driven):  # which DG312 tells
        return
    what = "`update` is called, and no optimizer has stepped with the scaler since it was called last"
    scaling.find(RULE, "GradScaler.update", {"what": what, **_UPDATE})
