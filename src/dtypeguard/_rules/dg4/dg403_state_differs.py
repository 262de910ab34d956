"""DG403 state-differs."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG403",
    "state-differs",
    Severity.ERROR,
    summary="",
    says="state {keys} of {names} is {found}, the parameters are {expected}",
    fix=(
        "convert or move the model before the optimizer is built; after a change build it anew, or "
        "`optimizer.load_state_dict(optimizer.state_dict())` to cast its state"
    ),
    why=(
        "`model.half()` and `model.to()` change parameters in place and leave the optimizer's state as it "
        'was. The next step fails with "expected dtype float for `end` but got dtype c10::Half", or mixes '
        "dtypes in silence."
    ),
    sources=("https://github.com/pytorch/pytorch/issues/7844",),
)
