"""Totals that a program keeps over steps of which an audit looks at some: whether they stand still in between.

In a step that is looked at, the shadow of a total begins as its values are, so its error is that of one step. What is
lost in one step is lost in each of the steps in which the total has not moved.
"""

import weakref
from typing import Any

import torch
from torch import Tensor

from ..ops import ACCUMULATES
from ..watch.text import LARGEST
from .memory import Memory, ShadowStorage
from .rows import Row

UNMOVED, LOST = 0.5, 0.05  # share of values, and the part of the total


class Kept:
    """One total.

    Attributes:
        row: the line that adds to it.
        lost: what the last step that was looked at has lost of each value.
        step: that step.
        values: as they were after it.
        drift: what all steps have lost in which nothing moved.
    """

    __slots__ = ("drift", "lost", "ref", "row", "step", "stood", "values")

    def __init__(self, ref: "weakref.ref[Any]", row: Row, values: Tensor) -> None:
        self.ref, self.row, self.values = ref, row, values
        self.lost = self.drift = torch.zeros((), dtype=torch.float64)
        self.step, self.stood = 0, False

    def now(self) -> Tensor | None:
        """The values, if the program still has them."""
        storage = self.ref()
        if storage is None or storage.nbytes() != self.values.nbytes:
            return None
        return torch.empty(0, dtype=self.values.dtype, device=self.values.device).set_(
            storage, 0, (self.values.numel(),), (1,)
        )

    def stands(self, now: Tensor) -> bool:
        """Whether most values are as they were after the last step that was looked at."""
        return float((now == self.values).sum()) > UNMOVED * now.numel()

    def looked(self, now: Tensor, shadow: Tensor, step: int) -> None:
        """A step has been looked at, in which most values did not move though their shadow did."""
        self.lost = shadow.double() - now.double()
        self.drift = self.drift + self.lost * (step - self.step) if self.stood else self.lost
        self.values, self.step = now.clone(), step

    def share(self, now: Tensor) -> float:
        """The drift, as a share of the total with it."""
        return float(self.drift.norm() / (now.double() + self.drift).norm().clamp(min=1e-300))


class Totals:
    """The totals of a program."""

    def __init__(self) -> None:
        self._of: dict[int, Kept] = {}

    def rest(self, memory: Memory, step: int) -> list[tuple[Kept, float]]:
        """A step that was looked at has ended; those totals that stand still, and what they have lost."""
        found = {}
        for held in memory.all():
            if _is_total(held):
                key = id(held.ref())
                kept = self._of.get(key)
                if kept is None or kept.ref() is not held.ref() or kept.row is not held.row:
                    empty = torch.empty(held.size // held.dtype.itemsize, dtype=held.dtype, device=held.buffer.device)
                    kept = Kept(held.ref, held.row, empty)
                now = kept.now()
                if now is not None:
                    kept.looked(now, held.buffer, step)
                    found[key] = kept
        self._of = found
        return [(kept, kept.share(now)) for kept in found.values() if (now := kept.now()) is not None]

    def wake(self, memory: Memory) -> None:
        """A step begins that is looked at: totals have a shadow, and are known as such."""
        for kept in list(self._of.values()):
            now = kept.now()
            if now is not None:
                kept.stood = kept.stands(now)
                held = memory.hold(now, kept.row)
                held.row = kept.row

    def close(self, step: int) -> list[tuple[Kept, float]]:
        """The program has ended, so many steps later."""
        found = []
        for kept in self._of.values():
            now = kept.now()
            if now is not None and kept.stands(now):
                kept.drift = kept.drift + kept.lost * (step - kept.step)
                found.append((kept, kept.share(now)))
        return found


def _is_total(held: ShadowStorage) -> bool:
    row = held.row
    if row is None or row.backward or row.name not in ACCUMULATES:
        return False
    return held.ref() is not None and held.size // held.dtype.itemsize <= LARGEST and not held.dtype.is_complex
