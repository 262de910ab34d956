"""torch.export, torch.onnx and torch.jit.trace: while torch works on a program, the audit is out of the way.

What comes out is what would have come out without it.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from .patches import around
from .recorder import Recorder

_EXPORTER = "torch.export._trace"


@around(torch.export.ExportedProgram, "run_decompositions")
@around(torch._C, "_create_graph_by_tracing")  # of `torch.jit._get_trace_graph`, as counters of FLOPs call it
def _apart(audit: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with audit.without_audit():
        return original(*args, **kwargs)


@around(torch.export, "export", "draft_export")
def _opening(audit: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Exports import torch's exporter when it is needed, which takes seconds; then it can be watched."""
    with audit.paused():
        importlib.import_module(_EXPORTER)
    audit.guarded(audit.patches.begin, audit)
    return original(*args, **kwargs)


@around(torch.onnx, "export")
def _exporting_onnx(audit: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What goes by TorchScript fails below any mode; all else goes by `torch.export`."""
    with contextlib.nullcontext() if kwargs.get("dynamo", True) else audit.without_audit():
        return original(*args, **kwargs)


@around("torch._dynamo", "explain")
def _explaining(audit: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`explain(model)(x)`, which counts the graphs of a program that is compiled."""
    explain = original(*args, **kwargs)

    @functools.wraps(explain)
    def call(*args: Any, **kwargs: Any) -> Any:
        with audit.without_audit():
            return explain(*args, **kwargs)

    return call if callable(explain) else explain


@around(_EXPORTER, "_export")
@around("torch.jit._trace", "_trace_impl", "trace_module")
@around(torch.jit, "trace_module")
def _exporting(audit: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with audit.without_audit():
        program = original(*args, **kwargs)
    source = (*args, *kwargs.values())[0]
    if program is not source:
        audit.emit("exported", source, program, audit.user())
    return program
