"""`python -m dtypeguard manifest`: write a manifest, or check models and checkpoints against one."""

import argparse
from collections.abc import Mapping
from typing import Any

from torch import nn

from ..._core.base.usage import Failed, Usage
from ..audit.command import try_files, write_files
from ..audit.factory import Takes, both_by, refusing
from .manifest import StateDiff, manifest

_SUBJECTS = Takes("an nn.Module or a state_dict", lambda value: isinstance(value, nn.Module | Mapping))


def run(options: argparse.Namespace) -> int:
    """Print a manifest, or what differs from one.

    Raises:
        Failed: something differs.
        Raised: a model raises something itself.
        Usage: what was named is not there, cannot be read, or is no model and no checkpoint.
    """
    try_files(options, "output", "html", "json")
    if options.check is None:
        if len(options.subjects) != 1:
            raise Usage("a manifest is of one model or checkpoint: name one, or check several with --check dtypes.lock")
        return _write(options, options.subjects[0])
    for name in ("output", "shapes", "devices"):
        if getattr(options, name):
            raise Usage(f"--{name} is for a manifest that is written, and --check writes none")
    if len(options.subjects) > 1 and (options.html or options.json):
        raise Usage("--html and --json take one model or checkpoint at a time")
    with refusing(OSError):
        lock = manifest.load(options.check)
    found = [_checked(lock, name, options) for name in options.subjects]
    differ = [name for name, diff in zip(options.subjects, found, strict=True) if diff]
    if differ:
        raise Failed(f"{', '.join(differ)} {'differs' if len(differ) == 1 else 'differ'} from {options.check}")
    return 0


def _write(options: argparse.Namespace, name: str) -> int:
    subject, batch = both_by(name, options.batch, _SUBJECTS, paths=True)
    with refusing(OSError, RuntimeError):
        made = manifest(subject, batch=batch, shapes=options.shapes, devices=options.devices)
        if options.output is None:
            print(made, end="")
        else:
            made.save(options.output)
    write_files(options, made)
    return 0


def _checked(lock: Any, name: str, options: argparse.Namespace) -> StateDiff:
    subject, batch = both_by(name, options.batch, _SUBJECTS, paths=True)
    with refusing(OSError, RuntimeError):
        found: StateDiff = lock.diff(subject, batch=batch)
    print(found if subject == name else str(found).replace(type(subject).__name__, name, 1))
    write_files(options, found)
    return found
