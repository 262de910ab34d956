"""Averages of parameters that cannot move, because their dtype has no room for a small step.

Floor 5.
"""

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from .._errors import plain
from .._ledger import Ledger
from ._names import Names, named, unwrap
from ._tensors import HALF, sample

_STUCK, _UPDATES = 0.9, 2


class WatchedAverage:
    """An `AveragedModel`, an EMA module, or its tensors, beside the model that it follows."""

    def __init__(self, averaged: Any, names: Names, ledger: Ledger) -> None:
        self._ledger = ledger
        sources = {name: parameter for parameter, name in names.named()}
        self._pairs = [
            _Pair(name, tensor, sources[name]) for name, tensor in _tensors(averaged, sources) if name in sources
        ]
        if not self._pairs:
            raise ValueError(f"averaged: nothing in it has the name of a parameter of {names.title}")

    def look(self) -> None:
        """Compare with the last look."""
        __tracebackhide__ = True
        looks = [(pair, share) for pair in self._pairs if (share := pair.stuck()) is not None]
        wrong = [(pair, share) for pair, share in looks if share >= _STUCK and pair.updates >= _UPDATES]
        if wrong:
            dtype = wrong[0][0].dtype
            facts = {
                "found": plain(dtype), "share": sum(share for _, share in wrong) / len(wrong),
                "updates": f"{min(pair.updates for pair, _ in wrong)} looks at it",
            }  # fmt: skip
            names = [pair.name for pair, _ in wrong]
            self._ledger.add("DG407", (), "an average", facts, parameters=names, from_dtype=dtype, op="averaging")


class _Pair:
    """One averaged tensor and what it follows."""

    def __init__(self, name: str, average: Tensor, source: Tensor) -> None:
        self.name, self.dtype = name, average.dtype
        self._average, self._source = weakref.ref(average), weakref.ref(source)
        self._values: Tensor | None = None
        self._version = -1
        self.updates = 0

    def stuck(self) -> float | None:
        """The share of differing elements that an update did not move; None if there was no update, or none differ."""
        average, source = self._average(), self._source()
        if average is None or source is None or average.dtype not in HALF:
            return None
        values, goal = sample(average), sample(source)
        if values is None or goal is None or values.shape != goal.shape:
            return None
        before, self._values = self._values, values.clone()
        updated, self._version = average._version != self._version, average._version
        if before is None or not updated:
            return None
        differ = values != goal.to(values.dtype)
        count, still = torch.stack([differ.sum(), (differ & (values == before)).sum()]).tolist()
        self.updates += 1
        return still / count if count else None


def _tensors(averaged: Any, sources: Mapping[str, Tensor]) -> Iterable[tuple[str, Tensor]]:
    if isinstance(averaged, nn.Module):
        inner = averaged.module if isinstance(averaged, AveragedModel) else averaged
        return [(name, tensor) for tensor, name in named(unwrap(inner))]
    if isinstance(averaged, Mapping):
        found = list(averaged.items())
    elif isinstance(averaged, Iterable):
        found = list(zip(sources, averaged, strict=False))
    else:
        found = [("", averaged)]
    for _, tensor in found:
        if not isinstance(tensor, Tensor):
            raise TypeError(
                "averaged must be an nn.Module (an AveragedModel, say), a dict of tensors by parameter name, or "
                f"tensors in the order of model.parameters(), not {type(averaged).__name__} of {type(tensor).__name__}"
            )
    return found
