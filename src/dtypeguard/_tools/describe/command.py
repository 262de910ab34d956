"""`python -m dtypeguard describe`: what a guard holds a model to, and whether a batch fulfils it."""

import argparse
import contextlib
import warnings
from typing import Any

from ..._core.base.config import mode
from ..._core.base.errors import DtypeGuardError, DtypeGuardWarning
from ..._core.base.modules import root_of
from ..._core.base.usage import Failed
from ..._core.doors.guard import is_held
from ..._core.doors.guarded import guarded
from ..audit.command import try_files, write_files
from ..audit.factory import both_by, refusing
from ..calls import inputs_of
from .describe import describe


def run(options: argparse.Namespace) -> int:
    """Print the description, and call the model with a batch if there is one.

    Raises:
        Failed: a guard refuses the batch.
        Raised: the model raises something itself.
        Usage: a function is not there, or gives something else.
    """
    try_files(options, "html", "json")
    model, batch = both_by(options.model, options.batch)
    with refusing():
        found = describe(model)
        called = None if batch is None else inputs_of("describe", root_of(model), batch)
    print(found)
    write_files(options, found)
    if called is not None:
        _call(model, called.args, called.kwargs)
    return 0


def _call(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call the model once, strictly, with the guard that it has or else the one that was described."""
    guard = contextlib.nullcontext() if is_held(model) else guarded(model)
    with refusing(RuntimeError), guard, mode("strict"), warnings.catch_warnings():
        warnings.simplefilter("error", DtypeGuardWarning)  # of a guard whose own mode is to repair
        try:
            model(*args, **kwargs)
        except (DtypeGuardError, DtypeGuardWarning) as error:
            ours = getattr(error, "call_site", None) or "\n"
            lines = [line for line in str(error).splitlines() if not line.endswith(ours)]
            print("", *lines, sep="\n")
            raise Failed(f"the batch violates it: {lines[0]}") from error
    print("\nThe batch fulfils it.")
