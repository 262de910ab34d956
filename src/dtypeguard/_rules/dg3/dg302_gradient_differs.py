"""DG302 gradient-differs."""

from torch import Tensor

from ..._core.base.errors import plain
from ..._engine.watch.events import on
from ..._engine.watch.rule import Rule, Severity
from ...amp._optimizer import Group

RULE = Rule(
    "DG302",
    "gradient-differs",
    Severity.ERROR,
    summary="A gradient has another dtype or device than its parameter.",
    says="the gradients of {names} are {found}, the parameters {expected}",
    fix="convert the model before the first backward, or call `{optimizer_code}.zero_grad()` after converting it",
    why=(
        "A gradient has its parameter's dtype and device, unless `grad_dtype` says otherwise. Where "
        "`param.data` was replaced between backward and step, the old gradient stays, and the step fails "
        "obscurely or mixes dtypes."
    ),
    sampled=True,
    sources=("https://docs.pytorch.org/docs/stable/generated/torch.Tensor.grad.html",),
)


@on("look", RULE)
def compare(group: Group) -> None:
    pairs = [(parameter, parameter.grad) for parameter in group.parameters() if parameter.grad is not None]
    dtypes = [(p, plain(g.dtype), plain(p.dtype)) for p, g in pairs if g.dtype is not p.dtype and not _is_allowed(p, g)]
    devices = [(p, f"on {g.device}", f"on {p.device}") for p, g in pairs if g.device != p.device]
    for kind, wrong in ("dtype", dtypes), ("device", devices):
        if wrong:
            first, found, expected = wrong[0]
            facts = {"found": found, "expected": expected}
            group.add(RULE, facts, [parameter for parameter, _, _ in wrong], kind=kind, to_dtype=first.dtype)


def _is_allowed(parameter: Tensor, gradient: Tensor) -> bool:
    # None allows any. torch < 2.10: no grad_dtype, gradients have the parameter's; goes with that floor
    return getattr(parameter, "grad_dtype", parameter.dtype) in (None, gradient.dtype)
