"""`python -m dtypeguard dryrun`: the table of a model that a function makes."""

import argparse
import importlib
import os
import sys
from typing import Any

from .._audit.command import Usage
from .._calls import call_of
from .dryrun import dryrun


def run(options: argparse.Namespace) -> int:
    """Print the table. The status is 1 if a dtype that is required does not run.

    Raises:
        Usage: if a function is not there, or gives something else.
    """
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    model, example = _made(options.model), () if options.example is None else _made(options.example)
    try:
        args, kwargs = call_of(example)
        table = dryrun(model, *args, **kwargs)
    except TypeError as error:
        raise Usage(str(error)) from error
    print(table)
    if options.html:
        table.to_html(options.html)
    if options.json:
        table.to_json(options.json)
    status = 0
    for name in options.require:
        try:
            table.assert_runs(name)
        except AssertionError as error:
            print(f"\n{error}", file=sys.stderr)
            status = 1
        except (KeyError, ValueError) as error:
            raise Usage(str(error.args[0])) from error
    return status


def _made(path: str) -> Any:
    """What `package.module:function` gives."""
    module, colon, name = path.partition(":")
    if not colon or not module or not name:
        raise Usage(f"{path!r} is no package.module:function")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports what is not
        raise Usage(f"there is no module {module!r}") from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise Usage(f"there is no function {name!r} in {module}")
    return found()
