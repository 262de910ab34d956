"""`python -m dtypeguard compare`: what a lower precision costs the model that a function makes."""

import argparse
import sys
from typing import Any

from torch import nn

from .._audit.command import Usage, try_files
from .._audit.factory import made_by
from .._base.dtypes import BY_NAME
from .._base.errors import CompareError, DtypeGuardError
from .compare import compare


def run(options: argparse.Namespace) -> int:
    """Compare, print the result, and give the exit status: 1 if an error is larger than it may be.

    Raises:
        Usage: for what is wrong with the options, or cannot be compared.
    """
    try:
        try_files(options, "json", "html")
        dtypes = {name: _dtype(getattr(options, name)) for name in ("dtype", "autocast")}
        model, batch = _made(options)
        if options.keep is not None and not options.keep > 0:
            raise ValueError(f"--keep {options.keep}: the error must be positive")
        result = compare(model, batch, **dtypes)
    except (DtypeGuardError, ValueError) as error:
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


def _dtype(name: str | None) -> Any:
    if name is not None and name not in BY_NAME:
        raise ValueError(f"{name!r} is no dtype: write bfloat16, float16 or float32")
    return None if name is None else BY_NAME[name]


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


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add = parser.add_argument
    add("model", metavar="package.module:make_model", help="a function that returns the model, or (model, batch)")
    add("--batch", metavar="package.module:make_batch", help="a function that returns a batch, or a list of batches")
    low = parser.add_mutually_exclusive_group(required=True)
    low.add_argument("--dtype", help="the dtype to convert the model to: bfloat16, float16, float32")
    low.add_argument("--autocast", metavar="DTYPE", help="the dtype of an autocast region: bfloat16, float16")
    add("--keep", type=float, metavar="ERROR", help="find the modules that must stay in float32 for this error")
    add(
        "--max-error",
        type=float,
        metavar="ERROR",
        help="status 1 if the error is larger; with --keep, that with the modules in float32",
    )
    add("--json", metavar="PATH", help="write the result as JSON")
    add("--html", metavar="PATH", help="write the result as an HTML page")
