"""Tensors that leave a program: saved to a file, or as arrays and lists. Two runs are compared by samples of them."""

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..._core.base import private
from ..._core.base.dtypes import name_of
from ..._engine.watch.events import tensors_in

_MOST = 200  # tensors that are looked at: the first
_SAMPLE = 512  # values of one
_WAYS: tuple[tuple[Any, str], ...] = ((torch, "save"), (Tensor, "numpy"), (Tensor, "tolist"))


class Sample(NamedTuple):
    """What a tensor was that left the program, and some of its values, the same ones in each run."""

    dtype: str
    shape: tuple[int, ...]
    values: tuple[float, ...]


class Leaving:
    """In a block of it what leaves the program is noted.

    Attributes:
        samples: in the order in which they left.
        steps: how many steps of optimizers there were.
    """

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.steps = 0
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for owner, name in _WAYS:
            own = vars(owner).get(name)  # None where it is inherited
            if own is None:
                self._undo.callback(delattr, owner, name)
            else:
                self._undo.callback(setattr, owner, name, own)
            setattr(owner, name, self._noting(getattr(owner, name)))
        self._undo.callback(register_optimizer_step_post_hook(self._stepped).remove)
        return self

    def _stepped(self, *step: object) -> None:
        self.steps += 1

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):  # a tensor of another kind, which has no such values
                self._note(args[0] if args else kwargs["obj"])
            return original(*args, **kwargs)

        return noted

    def _note(self, value: Any) -> None:
        with private.no_dispatch(), torch.no_grad():
            for _, tensor in tensors_in(value):
                plain = tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized
                if len(self.samples) < _MOST and plain and not tensor.is_complex():
                    flat = tensor.detach().reshape(-1)
                    some = flat[:: max(1, flat.numel() // _SAMPLE)].double().cpu()
                    values = tuple(some[number].item() for number in range(len(some)))
                    self.samples.append(Sample(name_of(tensor.dtype), tuple(tensor.shape), values))


class Left(Protocol):
    """A run, from which tensors have left."""

    @property
    def left(self) -> Sequence[Sample]: ...


def all_near(old: Left, new: Left, nearly: float) -> bool:
    """Whether what left two runs is nearly the same; with 0 it is the same, and of the same dtype."""
    return all(_is_near(a, b, nearly) for a, b in zip(old.left, new.left, strict=False))


def _is_near(old: Sample, new: Sample, nearly: float) -> bool:
    if old.shape != new.shape:  # of something else
        return True
    if not nearly:
        return old.dtype == new.dtype and all(a == b or a != a for a, b in zip(old.values, new.values, strict=True))
    pairs = [(a, b) for a, b in zip(old.values, new.values, strict=True) if math.isfinite(a)]
    apart = math.hypot(*(a - b for a, b in pairs))
    return apart <= nearly * math.hypot(*(a for a, _ in pairs))  # which NaN that is new is not
