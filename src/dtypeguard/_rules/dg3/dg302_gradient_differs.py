"""DG302 gradient-differs."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG302",
    "gradient-differs",
    Severity.ERROR,
    summary="",
    says="the gradients of {names} are {found}, the parameters {expected}",
    fix="convert the model before the first backward, or call `optimizer.zero_grad()` after converting it",
    why=(
        "A gradient has its parameter's dtype and device, unless `grad_dtype` says otherwise. Where "
        "`param.data` was replaced between backward and step, the old gradient stays, and the step fails "
        "obscurely or mixes dtypes."
    ),
    sources=("https://docs.pytorch.org/docs/stable/generated/torch.Tensor.grad.html",),
)
