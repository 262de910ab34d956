"""`python -m dtypeguard compare`: what a lower precision costs the model that a function makes."""

import argparse
import json
import math
from typing import Any

from ..._core.base.errors import CompareError
from ..._core.base.usage import Usage
from ..._show.files import writable, write
from ..._show.text import percent, titled
from ..factory import both_by, found_by, no_batch, refusing
from ..output import tell, try_files
from .compare import compare
from .recipes import check_tool, recipe

_WORTH = 0.2  # of the error²: what keeping a layer saves at least to be advised
_OF_FORMATS = ("bits", "recipe", "attention")  # options that have no meaning for a dtype


def run(options: argparse.Namespace) -> int:
    """Compare, and print the result."""
    with refusing():
        try_files(options)
        wanted = [_recipe(options, tool, path) for tool, path in options.recipe]
        for name, what in (("keep", "the error"), ("bits", "the average")):
            if (value := getattr(options, name)) is not None and not value > 0:
                raise ValueError(f"--{name} {value:g}: {what} must be positive")
        if options.keep is not None and options.keep >= 1:  # so have outputs that are all 0
            percents = f"{options.keep:g}%"
            raise ValueError(f"--keep {options.keep:g} is {percent(options.keep)}, no goal: did you mean {percents}?")
        if options.max_error is not None and not options.max_error >= 0:
            raise ValueError(f"--max-error {options.max_error:g}: no error is less than 0")
        for name in ("dtype", "region"):
            if "," in (getattr(options, name) or ""):
                raise ValueError(f"--{name} {getattr(options, name)}: compare takes one dtype, so run it for each")
        low = _low(options)
        model, batch = both_by(options.model, options.batch, lists=True)
        if batch is None:
            raise no_batch(options.model)
        result: Any = compare(model, batch, **low)
        kept = _keep(result, options)
    if isinstance(kept, CompareError):
        return tell(options, result, str(kept))
    for tool, path in wanted:
        write(path, json.dumps(kept.to_recipe(tool), indent=1) + "\n")
    failed = _above(options, result, kept)
    following = "" if kept is not None or options.format else _next(options, result, failed)
    return tell(options, result, failed, "\n".join([str(result), following]) if following else "")


def _next(options: argparse.Namespace, result: Any, failed: str) -> str:
    """What to do about an error, in a line; nothing where it is small enough, or no layer is known to save any."""
    best = max(result.layers, key=lambda layer: layer.saves or 0, default=None)
    if best is None or not best.saves or not math.isfinite(best.saves) or not (failed or options.max_error is None):
        return ""
    if best.saves < _WORTH:
        return ""
    one = f"next: {titled(best.name)} kept in {result.wide} leaves about"
    left = percent(result.error * math.sqrt(max(1 - best.saves, 0)))
    goal = f"{percent(options.max_error).replace(' ', '')}" if options.max_error else "ERROR"
    return f"{one} {left}; --keep {goal} finds what to keep"


def _above(options: argparse.Namespace, result: Any, kept: Any) -> str:
    """That the error is larger than it may be; nothing where it is not."""
    left = result.error if kept is None else kept.error
    if options.max_error is None or left <= options.max_error:
        return ""
    where = "" if kept is None or not kept.names else f" with what is kept in {result.wide}"
    gradient = getattr(kept or result, "gradient", None)  # of --loss, with --format
    rest = "" if gradient is None else f"; that of the loss's gradients, {percent(gradient)}, is not asked"
    return f"{result.compared} error {percent(left)}{where} is above --max-error {percent(options.max_error)}{rest}"


def _low(options: argparse.Namespace) -> dict[str, Any]:
    """What to compare with, as `compare` takes it."""
    loss = None if options.loss is None else found_by(options.loss)
    if not options.format:
        wrong = next((name for name in _OF_FORMATS if getattr(options, name)), None)
        if wrong is not None:
            raise Usage(f"--{wrong} goes with --format")
        return {"dtype": options.dtype, "region": options.region, "loss": loss}
    return {"format": tuple(options.format), "loss": loss, "attention": options.attention}


def _recipe(options: argparse.Namespace, tool: str, path: str) -> tuple[str, str]:
    """A tool, and the path of its recipe, tried before anything runs."""
    if options.keep is None and options.bits is None:
        raise Usage("--recipe needs a choice to write: add --keep ERROR or --bits BITS")
    if check_tool(tool) == "modelopt":
        raise Usage(
            "--recipe modelopt: its configuration has integers for keys, which JSON has not: call "
            "`kept.to_recipe(tool='modelopt')` in Python"
        )
    # whether the tool takes them together
    recipe(tool, {f"{n}": to for n, to in enumerate(options.format or ())}, ())
    return tool, writable(path)


def _keep(result: Any, options: argparse.Namespace) -> Any:
    """What was found for `--keep` or `--bits`; the error where there is nothing."""
    given = {"error": options.keep, "bits": options.bits}
    wanted = {name: value for name, value in given.items() if value is not None}
    try:
        return result.keep(**wanted) if wanted else None
    except CompareError as refusal:
        return refusal
