"""Random numbers that several runs of a model share: dropout in another dtype would draw another mask."""

from typing import Any

import torch
from torch import Tensor

from ..._core.base import private
from ..._core.base.modes import Mode
from ..._core.base.numbers import drawn as draw


class Draws(Mode):
    """Keeps the random numbers of the first run, and gives them to each later one, in the dtype of that run.

    Attributes:
        same: whether all runs so far have drawn alike.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[tuple[str, Tensor]] = []
        self._place: int | None = None  # None while they are recorded
        self.same = True

    def forget(self) -> bool:
        """Whether random numbers were drawn; the next run is the first again."""
        drawn = bool(self._kept)
        self._kept, self._place = [], None
        return drawn

    @property
    def none(self) -> bool:
        """Whether the first run has drawn no random numbers."""
        return not self._kept

    def again(self) -> "Draws":
        """For the next run."""
        self._place = 0
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = draw(func, args, kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags or private.current_node() is not None:
            return out
        if func is torch.ops.aten.native_dropout.default:
            drawn, share = out[1], args[1]
        else:
            drawn, share = (out[0] if isinstance(out, (tuple, list)) else out), None
        if not isinstance(drawn, Tensor) or _attends(func):
            return out
        if self._place is None:
            self._kept.append((func.name(), drawn.detach().clone()))
            return out
        name, kept = self._kept[self._place] if self._place < len(self._kept) else ("", drawn)
        self._place += 1
        if name != func.name() or kept.shape != drawn.shape:
            self.same = False
            return out
        drawn.copy_(kept)
        if share is not None:
            out[0].copy_(args[0] * drawn * (1 / (1 - share) if share < 1 else 0.0))
        return out


def _attends(func: Any) -> bool:
    """Attention that drops out inside of one kernel shows no mask."""
    return "attention" in func.name()
