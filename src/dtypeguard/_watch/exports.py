"""torch.export, torch.jit.trace, torch.jit.script: while torch works on a program, the audit is out of the way.

What comes out is what would have come out without it.
"""

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .events import on
from .recorder import Recorder

_EXPORTER = "torch.export._trace"


@on("start")
def replace(audit: Recorder) -> None:
    """Replace, for the time of the audit, what exports, traces and scripts."""
    if _EXPORTER in sys.modules:
        _watch_exporter(audit)
    for name in ("export", "draft_export"):
        audit.patches.replace(torch.export, name, functools.partial(_opening, audit))
    audit.patches.replace(torch.export.ExportedProgram, "run_decompositions", functools.partial(_aside, audit))
    traces = sys.modules["torch.jit._trace"]
    for owner, name in ((traces, "_trace_impl"), (traces, "trace_module"), (torch.jit, "trace_module")):
        audit.patches.replace(owner, name, functools.partial(_tracing, audit))
    audit.patches.replace(sys.modules["torch.jit._script"], "_script_impl", functools.partial(_scripting, audit))


def _aside(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with audit.aside() if audit.live else contextlib.nullcontext():
            return original(*args, **kwargs)

    return call


def _opening(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """Exports import torch's exporter when it is needed, which takes seconds; then it can be watched."""

    @functools.wraps(original)
    def export(*args: Any, **kwargs: Any) -> Any:
        if audit.live and not audit.state(Exporter).watched:
            with audit.paused():
                importlib.import_module(_EXPORTER)
            audit.guarded(_watch_exporter, audit)
        return original(*args, **kwargs)

    return export


@dataclass
class Exporter:
    watched: bool = False


def _watch_exporter(audit: Recorder) -> None:
    audit.state(Exporter).watched = True
    audit.patches.replace(sys.modules[_EXPORTER], "_export", functools.partial(_exporting, audit))


def _exporting(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _export(mod: Any, *args: Any, **kwargs: Any) -> Any:
        if not audit.live:
            return original(mod, *args, **kwargs)
        with audit.aside():
            program = original(mod, *args, **kwargs)
        audit.emit("exported", mod, program, audit.user())
        return program

    return _export


def _tracing(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def trace(func: Any, *args: Any, **kwargs: Any) -> Any:
        if not audit.live:
            return original(func, *args, **kwargs)
        with audit.aside():
            traced = original(func, *args, **kwargs)
        if traced is not func:
            audit.emit("traced", traced, audit.user())
        return traced

    return trace


def _scripting(audit: Recorder, original: Callable[..., Any]) -> Callable[..., Any]:
    """It compiles the source of torch's own functions, and looks for names in the frames around it: one more now."""

    @functools.wraps(original)
    def script(*args: Any, _frames_up: int = 0, **kwargs: Any) -> Any:
        with audit.aside() if audit.live else contextlib.nullcontext():
            return original(*args, _frames_up=_frames_up + 1, **kwargs)

    return script
