"""`python -m dtypeguard manifest`: write a manifest, or check models and checkpoints against one."""

import argparse
import os
from collections.abc import Mapping
from typing import Any

from torch import nn

from ..._core.base.usage import Usage
from ..factory import Takes, both_by, refusing
from ..output import STDOUT, tell, try_files
from .manifest import StateDiff, manifest

_SUBJECTS = Takes("an nn.Module or a state_dict", lambda value: isinstance(value, nn.Module | Mapping))


def run(options: argparse.Namespace) -> int:
    """Print a manifest, or what differs from one."""
    try_files(options)
    if options.check is None:
        if len(options.subjects) != 1:
            raise Usage("a manifest is of one model or checkpoint: name one, or check several with --check dtypes.lock")
        return _write(options, options.subjects[0])
    for name in ("shapes", "devices"):
        if getattr(options, name):
            raise Usage(f"--{name} is for a manifest that is written, and --check writes none")
    if options.output not in (None, STDOUT) and os.path.realpath(options.output) == os.path.realpath(options.check):
        raise Usage(f"cannot write {options.check}: --check reads it")
    if len(options.subjects) > 1 and (options.html or options.json):
        raise Usage("--html and --json take one model or checkpoint at a time")
    with refusing(OSError):
        lock = manifest.load(options.check)
    found = [_checked(lock, name, options) for name in options.subjects]
    differ = [name for name, (diff, _) in zip(options.subjects, found, strict=True) if diff]
    failed = f"{', '.join(differ)} {'differs' if len(differ) == 1 else 'differ'} from {options.check}"
    return tell(options, found[0][0], failed if differ else "", "\n".join(text for _, text in found))


def _write(options: argparse.Namespace, name: str) -> int:
    subject, batch = both_by(name, options.batch, _SUBJECTS, paths=True)
    with refusing(OSError, RuntimeError, failed=_failed(name, options)):
        made = manifest(subject, batch=batch, shapes=options.shapes, devices=options.devices)
        if options.output not in (None, STDOUT):
            made.save(options.output)  # which keeps comments
            options.output, options.quiet = None, options.json != STDOUT
    return tell(options, made, text=str(made).rstrip("\n"))


def _failed(name: str, options: argparse.Namespace) -> str:
    """What a model has failed to do that raises in a manifest, if it is called there."""
    return "" if options.batch is None else f"{name} does not run on the batch {options.batch}"


def _checked(lock: Any, name: str, options: argparse.Namespace) -> tuple[StateDiff, str]:
    subject, batch = both_by(name, options.batch, _SUBJECTS, paths=True)
    with refusing(OSError, RuntimeError, failed=_failed(name, options)):
        found: StateDiff = lock.diff(subject, batch=batch)
    text = str(found)
    return found, text if subject == name else text.replace(type(subject).__name__, name, 1)
