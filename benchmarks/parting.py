"""What it costs to find where two programs part."""

import copy
import statistics
import warnings
from typing import Any

import torch
from bars import Context
from real import MODELS, timed
from report import Row, Table, at_most, duration, times
from torch import nn

import dtypeguard

ROUNDS, FORWARDS = 5, 6.0  # of each program
SOME = "ResNet", "BERT", "GPT-2", "Llama", "Llama, width 512", "T5", "ViT", "U-Net"


def forwards(model: nn.Module, other: nn.Module, batch: dict[str, Any]) -> int:
    """How often `diff` calls the two models, and copies of them."""
    kind, count = type(model), 0
    forward = kind.forward

    def counted(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return forward(self, *args, **kwargs)

    kind.forward = counted
    try:
        dtypeguard.diff(model, other, batch)
    finally:
        kind.forward = forward
    return count


def rows_of(name: str) -> list[Row]:
    """A model against a copy of which one parameter is another, and against a copy."""
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    other = copy.deepcopy(model.eval())
    with torch.no_grad():
        list(other.parameters())[-1].mul_(1.01)
    rows = []
    for what, second in (("another function", other), ("a copy", copy.deepcopy(model))):
        seconds, shares = [], []
        for _ in range(ROUNDS):
            with torch.no_grad():
                both = timed(lambda b=second: (model(**batch), b(**batch)))
            seconds.append(timed(lambda b=second: dtypeguard.diff(model, b, batch)))
            shares.append(seconds[-1] / both)
        ns, ratio = statistics.median(seconds) * 1e9, statistics.median(shares)
        rows.append(Row(f"{name}, {what}", duration(ns), times(ratio)))
        each = forwards(model, second, batch) / 2
        rows.append(Row(f"{name}, {what}, forwards of each", f"{each:g}", "", at_most(FORWARDS, f"{FORWARDS:g}"), each))
    return rows


def parting(context: Context) -> Table:
    """`diff` of models of many small operations."""
    table = Table(
        "What `diff` costs",
        "The models of “Models of many small operations” in float32, against a forward of both, by time and "
        f"by number; medians of {ROUNDS}. Another function: one parameter is multiplied by 1.01.",
        ("pair", "here", "against both forwards"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in SOME:
            table.rows += rows_of(name)
    return table
