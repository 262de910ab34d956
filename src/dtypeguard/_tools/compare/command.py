"""`python -m dtypeguard compare`: what a lower precision costs the model that a function makes."""

import argparse
import sys
from typing import Any

from torch import nn

from ..._core.base.errors import CompareError
from ..._core.base.usage import Usage
from ..audit.command import try_files
from ..audit.factory import made_by
from .compare import compare


def run(options: argparse.Namespace) -> int:
    """Compare, print the result, and give the exit status: 1 if an error is larger than it may be.

    Raises:
        Usage: for what is wrong with the options, or cannot be compared.
    """
    try:
        try_files(options, "json", "html")
        model, batch = _made(options)
        if options.keep is not None and not options.keep > 0:
            raise ValueError(f"--keep {options.keep}: the error must be positive")
        result = compare(model, batch, dtype=options.dtype, region=options.region)
    except (TypeError, ValueError) as error:
        raise Usage(str(error)) from error
    status, left = 0, result.error
    if options.keep is not None:
        try:
            left = result.keep(error=options.keep).error
        except CompareError as refusal:
            print(refusal, file=sys.stderr)
            status = 1
    print(result)
    if options.json is not None:
        result.to_json(options.json)
    if options.html is not None:
        result.to_html(options.html)
    return int(status or (options.max_error is not None and not left <= options.max_error))


def _made(options: argparse.Namespace) -> tuple[Any, Any]:
    """The model and its batch."""
    made = made_by(options.model)
    if options.batch is not None:
        return made, made_by(options.batch)
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module):
        return made
    raise Usage(
        f"a batch is missing: write --batch package.module:function, or have {options.model} return (model, batch)"
    )
