"""`python -m dtypeguard dryrun`: the table of a model that a function makes."""

import argparse

import torch

from ..._core.base.dtypes import dtype_of, name_of
from ..._core.base.frames import runs_user_code, shortly
from ..._core.base.usage import Usage
from ..factory import both_by, no_batch, refusing
from ..output import STDOUT, tell, try_files
from .dryrun import DTYPES, HELD, REGIONS, Undrawn, tabled
from .table import no_cell


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    try_files(options)
    with refusing():
        regions = [_region(name) for name in options.region or ["none"]]
        _check_required(options, regions)
        dtypes = options.dtype or options.require or None
        model, batch = both_by(options.model, options.batch)
        try:
            asked = regions if options.region or options.require else REGIONS
            table = tabled(model, batch, dtypes, asked, options.device)
        except Undrawn as error:
            needed = f", which returns {error.needed}"
            raise Usage(
                f"{no_batch(options.model, needed)}; none can be drawn from annotations ({error.why})"
            ) from error
        except Exception as error:
            held = next((one for one in getattr(error, "__notes__", ()) if one.startswith(HELD)), None)
            if held is None or runs_user_code(error):
                raise
            raise Usage(f"{held.removeprefix(HELD)}; {shortly(error)}") from error
    refused, why = [], []
    for name in options.require:
        try:
            table.assert_runs(name)
        except AssertionError as error:
            refused.append(name)
            why.append(f"\n\n{error}")
        except KeyError as error:  # the model has no parameters, so no cell has their dtype
            raise Usage(f"--require {name}: {error.args[0]}") from error
    names = f"{table.module} does not run in {', '.join(refused)}, which --require names"
    printed = options.output is None and options.json != STDOUT  # then the table tells why
    status = tell(options, table, "".join([names, *(() if printed else why)]) if refused else "")
    if options.require and not options.quiet:
        print(f"exit status {status}: {table.module} runs in {', '.join(options.require)}, which --require names")
    return status


def _region(name: str) -> torch.dtype | None:
    """What `--region` names: a dtype of a region, or none."""
    legal = {"none" if one is None else name_of(one): one for one in REGIONS}
    if name.lower() in legal:
        return legal[name.lower()]
    if (found := dtype_of(name, "region", "'none'")) not in REGIONS:
        raise ValueError(f"--region {name} is none of {', '.join(legal)}")
    return found


def _check_required(options: argparse.Namespace, regions: list[torch.dtype | None]) -> None:
    """Raise ValueError if `--require` names what `--dtype` or `--region` leaves out."""
    run = DTYPES if options.dtype is None else tuple(dtype_of(name, "dtype") for name in options.dtype)
    for name in options.require:
        if (dtype := dtype_of(name, "require")) not in DTYPES:
            raise ValueError(f"--require {name}: {no_cell(dtype)}")
        if dtype not in run:
            there = ", ".join(map(name_of, run))
            raise ValueError(f"--require {name}: the model is run in {there} only: add {name} to --dtype")
    if options.require and None not in regions:
        raise ValueError("--require asks about the model without a region: add none to --region")
