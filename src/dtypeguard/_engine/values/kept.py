"""Totals that a program keeps over steps of which an audit looks at some: whether they stand still in between.

In a step that is looked at, the shadow of a total begins as its values are, so its error is that of one step. What is
lost in one step is lost in each of the steps in which the total has not moved.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..operands import all_values
from ..ops import ACCUMULATES
from ..sample import LARGEST
from .memory import Memory, ShadowStorage
from .rows import Row

UNMOVED, LOST = 0.5, 0.05  # share of values, and the part of the total


class Kept:
    """One total.

    Attributes:
        row: the line that adds to it.
        values: as they were after the last step that was looked at.
        lost: what that step has lost of each value.
        step: that step.
        stood: whether nothing had moved since the one before.
        drift: what all steps have lost in which nothing moved.
        died: the step in which the program gave it up, if it has.
    """

    __slots__ = ("died", "drift", "lost", "ref", "row", "step", "stood", "values")

    def __init__(self, storage: Any, row: Row, step: Callable[[], int], last: "Kept | None") -> None:
        def gone(ref: "weakref.ref[Any]") -> None:
            self.died = step() if row.name.endswith("_") else 0  # else the next step makes a new one

        self.ref, self.row = weakref.ref(storage, gone), row
        self.values = self.lost = self.drift = torch.zeros(())
        self.step, self.stood, self.died = 0, False, 0
        if last is not None:
            self.values, self.drift, self.step = last.values, last.drift, last.step

    def looked(self, now: Tensor, shadow: Tensor, step: int) -> None:
        """A step was looked at: what the shadow has more was lost in it, and in those before in which nothing moved."""
        self.lost = shadow.double() - now.double()
        self.stood = self.stood or (self.values.shape == now.shape and self.step > 0 and self.stands(now))
        self.drift = self.drift + self.lost * (step - self.step) if self.stood else self.lost
        self.values, self.step, self.stood = now.clone(), step, False

    def stands(self, now: Tensor) -> bool:
        """Whether most values are as they were after the last step that was looked at."""
        return float((now == self.values).sum()) > UNMOVED * now.numel()

    @property
    def share(self) -> float:
        """The drift, as a share of the total with it."""
        return float(self.drift.norm() / (self.values.double() + self.drift).norm().clamp(min=1e-300))


class Totals:
    """The totals of a program; `step` gives the number of steps that have ended."""

    def __init__(self, step: Callable[[], int]) -> None:
        self._of: dict[int, Kept] = {}
        self._step = step

    def rest(self, memory: Memory) -> list[Kept]:
        """A step that was looked at has ended."""
        found = {}
        for held in memory.all():
            storage = held.ref()
            if storage is not None and _is_total(held):
                now = all_values(storage, held.dtype)
                kept = self._of.get(id(storage))
                if kept is None or kept.ref() is not storage or kept.row is not held.row:
                    kept = Kept(storage, held.row, self._step, self._last(held.row, now))
                kept.looked(now, held.buffer, self._step())
                found[id(storage)] = kept
        self._of = found
        return list(found.values())

    def _last(self, row: Row, now: Tensor) -> Kept | None:
        """The same total, where each step makes a new tensor of it: `total = total + value`."""
        same = (kept for kept in self._of.values() if kept.row is row and kept.values.shape == now.shape)
        return next(same, None)

    @property
    def rows(self) -> set[Row]:
        return {kept.row for kept in self._of.values()}

    def wake(self, memory: Memory) -> None:
        """A step begins that is looked at: totals have a shadow, and are known as such."""
        for kept in self._of.values():
            storage = kept.ref()
            if storage is not None and storage.nbytes() == kept.values.nbytes:
                now = all_values(storage, kept.values.dtype)
                kept.stood = kept.stands(now)
                memory.hold(now, kept.row).row = kept.row

    def close(self) -> list[Kept]:
        """The program has ended; a total that it gave up stood still until then."""
        for kept in self._of.values():
            storage = kept.ref()
            if storage is None or kept.stands(all_values(storage, kept.values.dtype)):
                kept.drift = kept.drift + kept.lost * ((kept.died or self._step()) - kept.step)
        return list(self._of.values())


def _is_total(held: ShadowStorage) -> bool:
    row = held.row
    if row is None or row.backward or row.name not in ACCUMULATES:
        return False
    return held.size // held.dtype.itemsize <= LARGEST and not held.dtype.is_complex
