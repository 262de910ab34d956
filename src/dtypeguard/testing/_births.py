"""The lines where a model makes a tensor of another dtype than its own: what `check_module` tells to look at."""

import itertools
from collections.abc import Iterator

from .._core.base.dtypes import FLOATING, name_of
from .._core.base.errors import DtypeError
from .._engine.watch.rule import Finding
from .._tools.audit import audit
from .._tools.calls import Outcome
from ._trial import Trial

WRITE = "Write dtype=x.dtype, .to(x.dtype), or register_buffer for a plain attribute, which .to() does not reach"


def birth(trial: Trial) -> str:
    return birth_inside(trial) or f"a tensor that is made inside: torch.zeros, arange or randn. {WRITE}"


def birth_of_result(trial: Trial, outcome: Outcome) -> str:
    """Where the dtype is born for which a guard refuses or casts a result; "" if it does not."""
    error = outcome.error
    wrong = [error.argument or ""] if isinstance(error, DtypeError) else [cast.argument for cast in outcome.casts]
    return birth_inside(trial) if any(argument.startswith("result") for argument in wrong) else ""


def birth_inside(trial: Trial) -> str:
    """Where a tensor of another dtype than the model's is made; "" if none is."""
    return next((f"{born}. {WRITE}" for *_, born in mixtures(trial)), "")


def mixtures(trial: Trial) -> Iterator[tuple[Finding, str, str]]:
    """Where two floating dtypes meet inside: what the audit says, the one that is not the model's, where it is born."""
    own, model = trial.anchor_dtype, trial.fresh()
    with audit(select=("DG101", "DG102", "DG110"), ignore=()) as report:
        trial.call(model=model, cast_by_hand=trial.wrong)
    for finding in report.findings:
        pair = {finding.from_dtype, finding.to_dtype} & FLOATING
        if own in pair and len(pair) == 2:
            other = name_of(*pair - {own})
            born = _born(finding, other)
            if born or finding.rule != "DG110" or finding.from_dtype is not own:  # else other is what the kernel wants
                yield finding, other, born or f"`{finding.source}` at {finding.site}"


def _born(finding: Finding, dtype: str) -> str | None:
    """The line since which a tensor has a dtype: the first of the last ones that have it."""
    after = itertools.takewhile(lambda line: line.endswith((f": {dtype}", " more lines")), reversed(finding.origin))
    lines = [line for line in after if not line.endswith(" more lines") and not line.startswith("first seen")]
    return lines[-1] if lines else None
