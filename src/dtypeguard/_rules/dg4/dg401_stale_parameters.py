"""DG401 stale-parameters."""

from collections import Counter

from torch import Tensor

from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity, listed
from ...amp._optimizer import Holdings

RULE = Rule(
    "DG401",
    "stale-parameters",
    Severity.ERROR,
    summary="The optimizer holds tensors that left the model.",
    says="{optimizer} holds {count} that the model {model} does not have{missing}",
    fix=(
        "build the optimizer after the last change of the model (new head, PEFT, parametrization, "
        "`fully_shard`, `load_state_dict(assign=True)`), or `{optimizer_code}.add_param_group` for what is new; "
        "parameters of a loss or of a second model: `watch([model, other], ...)`"
    ),
    why=(
        "An optimizer keeps the parameters that it was given. Replace a layer afterwards and it steps on "
        "tensors that nothing computes with, while the new ones never move."
    ),
    unsafe=("optimizer_last",),
    sampled=True,
    sources=("https://docs.pytorch.org/docs/stable/optim.html#constructing-it",),
)


@on("held", RULE)
def strangers(held: Holdings) -> None:
    names, missing = held.names, held.missing
    alone = len(missing) == len(held.trainable)
    for watched, foreign in held.strangers.items():
        # One that has a gradient is used by somebody: a module that a wrapper held which is no more.
        gone = [one for one in foreign if names.had(one) and not (held.stepping and one.grad is not None)]
        if foreign and (gone or alone or _were_replaced(foreign, missing, held.stepping)):
            total = sum(1 for _ in watched.parameters())
            lacks = f", and lacks {listed(map(names.of, missing))}" if missing else ""
            facts = {"count": f"{len(foreign)} of {total} parameters", "model": names.title, "missing": lacks}
            held.stale = True
            held.claim(RULE, watched, facts, gone or missing or foreign, [] if gone else missing)
            return


def _were_replaced(foreign: list[Tensor], missing: list[Tensor], stepping: bool) -> bool:
    """Whether the parameters that an optimizer lacks replaced those that it holds, which else may be a loss's own.

    A new head has other sizes, and perhaps more layers, but tensors of as many axes. Gradients tell, once there are.
    """
    if stepping and any(parameter.grad is not None for parameter in missing):
        return all(parameter.grad is None for parameter in foreign)
    axes = (Counter(parameter.ndim for parameter in tensors) for tensors in (foreign, missing))
    return len(foreign) > 1 and len(missing) < 2 * len(foreign) + 1 and next(axes) <= next(axes)
