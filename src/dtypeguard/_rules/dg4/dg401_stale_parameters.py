"""DG401 stale-parameters."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG401",
    "stale-parameters",
    Severity.ERROR,
    summary="",
    says="{optimizer} holds {count} that the model {model} does not have{missing}",
    fix=(
        "build the optimizer after the last change of the model (new head, PEFT, parametrization, "
        "`fully_shard`, `load_state_dict(assign=True)`), or `optimizer.add_param_group` for what is new; "
        "parameters of a loss or of a second model: `watch([model, other], ...)`"
    ),
    why=(
        "An optimizer keeps the parameters that it was given. Replace a layer afterwards and it steps on "
        "tensors that nothing computes with, while the new ones never move."
    ),
    sources=("https://docs.pytorch.org/docs/stable/optim.html#constructing-it",),
)
