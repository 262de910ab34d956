"""DG603 load-truncates."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG603",
    "load-truncates",
    Severity.ERROR,
    summary="",
    says="`load_state_dict` writes {was} into {dtype}: {names} of {module} lose their fractions ({value})",
    fix="register the buffer with a floating dtype: `torch.tensor(1.0)`, not `torch.tensor(1)`",
    why=("Loading copies into the tensors that the model has; what is copied into an integer tensor is truncated."),
    sources=("https://github.com/pytorch/pytorch/issues/126000",),
)
