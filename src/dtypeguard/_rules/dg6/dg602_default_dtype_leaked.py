"""DG602 default-dtype-leaked."""

from ..._watch.rule import Rule, Severity

RULE = Rule(
    "DG602",
    "default-dtype-leaked",
    Severity.ERROR,
    summary="",
    says=(
        "the default dtype is {dtype} since this line ({was} before), and what is made from it met other "
        "dtypes: {effect}"
    ),
    fix=("set it back (`try: ... finally: torch.set_default_dtype(torch.{was})`), or give `dtype=` to the factories"),
    why=(
        "`torch.set_default_dtype` holds for the whole process. A library that sets it changes what "
        "`linspace`, `zeros` and every new layer give in all programs that use it."
    ),
    sources=(
        "https://github.com/ACEsuit/mace/issues/328",
        "https://docs.pytorch.org/docs/stable/generated/torch.set_default_dtype.html",
    ),
)
