"""`python -m dtypeguard doctor`: the environment, as dtypeguard sees it."""

import argparse
import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator

import torch

import dtypeguard

from .._core.base import config, private
from .._core.base.dtypes import name_of
from .._core.base.usage import Failed
from .._engine.watch.rule import RULES, Severity
from .._engine.watch.selection import Selection

_OPTIONAL = ("rich", "jinja2", "hypothesis", "pytest", "safetensors", "libcst", "shtab")


def run(options: argparse.Namespace) -> int:
    """Print it.

    Raises:
        Failed: something is wrong with it.
    """
    problems = []
    for name, ask in _QUESTIONS.items():
        try:
            answer = ask()
        except Exception as error:  # whatever it is, it is what the user wants to know
            answer = f"problem: {error}"
            problems.append(name)
        print(f"{name:<14} {answer}")
    if problems:
        raise Failed(f"problems with {', '.join(problems)}")
    return 0


def _devices() -> str:
    names = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        for index in range(torch.accelerator.device_count()):
            name = f" ({torch.cuda.get_device_name(index)})" if kind and kind.type == "cuda" else ""
            names.append(f"{kind}:{index}{name}")
    return ", ".join(names)


def _kinds() -> Iterator[str]:
    yield "cpu"
    if torch.accelerator.is_available():
        yield str(torch.accelerator.current_accelerator())


def _autocast() -> str:
    return ", ".join(f"{kind} {name_of(torch.get_autocast_dtype(kind))}" for kind in _kinds())


def _mode() -> str:
    variable, base, (told, file) = os.environ.get("DTYPEGUARD_MODE"), config.base(), config.read_project(os.getcwd())
    if base.mode is not None and base.under is None:
        return f"{base.mode.value} (DTYPEGUARD_MODE = {variable!r})"
    if told.mode is not None:
        return f"{told.mode.value} ({file}, for code below its folder)"
    return f"lenient (the default; DTYPEGUARD_MODE {'is not set' if variable is None else f'= {variable!r}'})"


def _casting() -> str:
    told, file = config.read_project(os.getcwd())
    if told.casting is None:
        return "precision (the default)"
    return f"{told.casting.name.lower()} ({file}, for code below its folder)"


def _selection() -> str:
    chosen = Selection.read()
    off = sorted(set(RULES) - chosen.rules)
    parts = [str(chosen.file or "no pyproject.toml with [tool.dtypeguard]"), f"{len(chosen.rules)} of {len(RULES)} on"]
    if off and len(off) < len(RULES) / 2:
        parts.append(f"without {', '.join(off)}")
    if chosen.severity is not Severity.INFO:
        parts.append(f"from severity {chosen.severity.value}")
    if chosen.per_file:
        parts.append(f"{len(chosen.per_file)} per-file-ignores")
    return "; ".join(parts)


def _internals() -> str:
    if not private.MISSING:
        return "all that dtypeguard uses of torch and jaxtyping are there"
    return f"without {', '.join(private.MISSING)}: less is seen, contracts hold"


def _optional() -> str:
    return ", ".join(f"{name} {_installed(name)}" for name in _OPTIONAL)


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


_QUESTIONS: dict[str, Callable[[], str]] = {
    "dtypeguard": lambda: f"{dtypeguard.__version__} in {os.path.dirname(dtypeguard.__file__)}",
    "python": lambda: f"{platform.python_version()} on {platform.system()}",
    "torch": lambda: str(torch.__version__),
    "devices": _devices,
    "default dtype": lambda: name_of(torch.get_default_dtype()),
    "autocast": _autocast,
    "mode": _mode,
    "casting": _casting,
    "rules": _selection,
    "internals": _internals,
    "optional": _optional,
}
