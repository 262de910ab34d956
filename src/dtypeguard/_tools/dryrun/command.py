"""`python -m dtypeguard dryrun`: the table of a model that a function makes."""

import argparse
import sys

from ..._core.base.usage import Failed, Usage
from ..audit.command import try_files, write_files
from ..audit.factory import made_by
from .dryrun import Undrawn, dryrun


def run(options: argparse.Namespace) -> int:
    """Print the table.

    Raises:
        Failed: a dtype that is required does not run.
        Usage: if a function is not there, or gives something else.
    """
    try_files(options, "json", "html")
    model, batch = made_by(options.model), None if options.batch is None else made_by(options.batch)
    regions = [None if name.lower() == "none" else name for name in options.region]
    try:
        table = dryrun(model, batch, dtypes=options.dtypes, region=regions)
    except Undrawn as error:
        raise Usage(
            f"a batch is missing: write --batch package.module:function, which returns {error.needed}; none can be "
            f"drawn from annotations ({error.why})"
        ) from error
    except (TypeError, ValueError) as error:
        raise Usage(str(error)) from error
    print(table)
    write_files(options, table)
    refused = []
    for name in options.require:
        try:
            table.assert_runs(name)
        except AssertionError as error:
            print(f"\n{error}", file=sys.stderr)
            refused.append(name)
        except (KeyError, ValueError) as error:
            raise Usage(str(error.args[0])) from error
    if refused:
        raise Failed(f"{table.module} does not run in {', '.join(refused)}, which --require names")
    return 0
