"""`python -m dtypeguard describe`: what a guard holds a model to, and whether a batch fulfils it."""

import argparse
import contextlib
import warnings
from typing import Any

from ..._core.base.config import mode
from ..._core.base.errors import DtypeGuardError, DtypeGuardWarning
from ..._core.base.modules import root_of
from ..._core.base.usage import Raised, Usage
from ..._core.doors.guard import is_held
from ..._core.doors.guarded import guarded
from ..calls import inputs_of
from ..factory import both_by, refusing
from ..output import tell, try_files
from .describe import describe


def run(options: argparse.Namespace) -> int:
    """Print the description, and call the model with a batch if there is one."""
    try_files(options)
    model, batch = both_by(options.model, options.batch)
    with refusing():
        found = describe(model)
        called = None if batch is None else inputs_of("describe", root_of(model), batch)
    if called is None:
        return tell(options, found)
    try:
        wrong = _called(model, called.args, called.kwargs)
    except (Raised, Usage):
        tell(options, found)
        raise
    failed = f"the batch violates it: {wrong[0]}" if wrong else ""
    return tell(options, found, failed, "\n".join([f"{found}\n", *(wrong or ["The batch fulfils it."])]))


def _called(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Call the model once, strictly, with the guard that it has or else the one that was described: what is wrong."""
    guard = contextlib.nullcontext() if is_held(model) else guarded(model)
    with refusing(RuntimeError), guard, mode("strict"), warnings.catch_warnings():
        warnings.simplefilter("error", DtypeGuardWarning)  # of a guard whose own mode is to repair
        try:
            model(*args, **kwargs)
        except (DtypeGuardError, DtypeGuardWarning) as error:
            ours = getattr(error, "call_site", None) or "\n"
            return [line for line in str(error).splitlines() if not line.endswith(ours)]
    return []
