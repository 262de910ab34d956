"""Tensors that leave a program: saved to a file, or as arrays and lists. Two runs are compared by samples of them."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Self

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
