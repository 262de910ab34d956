"""Random numbers that several runs of a model share: dropout in another dtype would draw another mask."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..._core.base import private
from ..._core.base.modes import Mode
from ..._core.base.numbers import Mark, Numbers
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
        self.same: bool = True

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
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()) or private.current_node() is not None:
            return out
        if func is torch.ops.aten.native_dropout.default:
            drawn, share = out[1], args[1]
        else:
            drawn, share = (out[0] if isinstance(out, (tuple, list)) else out), None
        if not isinstance(drawn, Tensor):
            return out
        if _hides(func):
            self.same = self.same and not _drops_out(func, args)
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


@contextlib.contextmanager
def drawing(numbers: Numbers, mark: Mark, draws: Draws) -> Iterator[None]:
    """Random numbers as in the first run; the program's own generators stay as they are."""
    numbers.back(mark)
    with numbers.here() as patches, draws.on():
        # Where a hook or a gradient is, the fast path is off anyway.
        patches.instead(torch.backends.mha, "get_fastpath_enabled", lambda following: False)
        patches.instead(F, "scaled_dot_product_attention", _plainly)
        try:
            yield
        finally:
            draws.again()


def _plainly(following: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
             is_causal: bool = False, **kwargs: Any) -> Any:  # fmt: skip
    """Fused attention drops out with a mask that nobody sees."""
    if not dropout_p or query.is_cpu:  # where there is no fused one that drops out
        return following(query, key, value, attn_mask, dropout_p, is_causal, **kwargs)
    math: Any = torch.ops.aten._scaled_dot_product_attention_math
    return math(query, key, value, attn_mask, dropout_p, is_causal, **kwargs)[0]


def _hides(func: Any) -> bool:
    """Attention and recurrent layers that drop out inside of one kernel show no mask."""
    return any(word in func.name() for word in ("attention", "rnn", "lstm"))


def _drops_out(func: Any, args: Any) -> bool:
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
    return bool(given.get("dropout", given.get("dropout_p"))) and given.get("train", True)
