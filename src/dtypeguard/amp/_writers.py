"""Loggers that `Watch.log` writes with, told by a method that each of them has, so that no package is imported."""

import itertools
import sys
from collections.abc import Callable
from numbers import Real
from typing import Any

from torch import Tensor

from ._metrics import Metrics

Write = Callable[[Any, Metrics, int | None], object]  # with a logger, at a step


def _tensorboard(writer: Any, found: Metrics, step: int | None) -> None:
    for name, value in found.items():
        writer.add_scalar(name, value, step)
    # A writer of your own, which has only what it needs, gets the scalars.
    for name, (counts, edges) in found.histograms.items() if hasattr(writer, "add_histogram_raw") else ():
        middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
        total, squares = (sum(c * m**power for c, m in zip(counts, middles, strict=True)) for power in (1, 2))
        low, high, number = edges[0], edges[-1], sum(counts)
        writer.add_histogram_raw(name, low, high, number, total, squares, edges[1:], counts, step)


def _wandb(run: Any, found: Metrics, step: int | None) -> None:
    histogram = sys.modules["wandb"].Histogram
    run.log({**found, **{name: histogram(np_histogram=pair) for name, pair in found.histograms.items()}}, step=step)


def _opentelemetry(meter: Any, found: Metrics, step: int | None) -> None:
    for name, value in found.items():
        package, what, part = (*name.split("/", 2), "")[:3]
        meter.create_gauge(f"{package}.{what}").set(value, {"part": part} if part else {})


# By a method that the logger has; the first that fits.
_WRITERS: dict[str, Write] = {
    "add_scalar": _tensorboard,  # of torch and of tensorboardX
    "define_metric": _wandb,  # a run, and the module
    "log_metrics": lambda logger, found, step: logger.log_metrics(dict(found), step=step),  # MLflow, Lightning's
    "create_gauge": _opentelemetry,
    "__call__": lambda function, found, step: function(dict(found), step),
}


def writing(writer: Any, step: Any) -> Callable[[Metrics, int | None], object]:
    """What writes with a logger."""
    if not isinstance(step, Real | Tensor | None):
        raise TypeError(f"step={step!r} is no number: pass that of the program's step")
    if writer is None:
        return lambda found, step: None
    for method, write in _WRITERS.items() if not isinstance(writer, type) else ():
        if hasattr(writer, method):
            return lambda found, step: write(writer, found, step)
    what = f"the class {writer.__name__}" if isinstance(writer, type) else type(writer).__name__
    raise TypeError(
        "writer must be a SummaryWriter, a run of wandb, the module mlflow, a logger of Lightning, a meter of "
        f"OpenTelemetry, or a function that takes a dict and a step, not {what}"
        + (f": give the logger itself, not {writer!r}" if isinstance(writer, str) else "")
    )
