"""DG112 inferred-float64."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG112",
    "inferred-float64",
    Severity.INFO,
    summary="",
    says="`{what}` is float64 since it holds NumPy scalars; with Python numbers it would be {default}",
    fix="say which dtype is meant: `torch.tensor(..., dtype={default_code})`",
    why=(
        "`torch.tensor` infers the dtype from its elements, and a `numpy.float64` looks and prints like a "
        "Python float. What depends on such a chance differs from run to run, and from rank to rank."
    ),
    sources=("https://github.com/modelscope/ms-swift/issues/9550",),
)
