"""Whether something wrote to gradients: told from what became of them, not from who did it."""

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from ._tensors import sample, version_of


class Mark:
    """A gradient as the scaled backward left it."""

    def __init__(self, parameter: Tensor, gradient: Tensor, valued: bool = True) -> None:
        """Only `valued`, which makes a copy, has values: what becomes of others is known by their versions."""
        values = sample(gradient) if valued else None
        self.values = None if values is None else values.clone()
        self._parameter, self._gradient = weakref.ref(parameter), weakref.ref(gradient)
        self._version = version_of(gradient)

    @property
    def parameter(self) -> Tensor | None:
        return self._parameter()

    def now(self) -> Tensor | None:
        """The gradient, if it was written to or replaced; its values show what `.data` hides from its version."""
        parameter = self._parameter()
        gradient = None if parameter is None else parameter.grad
        if gradient is None:
            return None
        values = None if self.values is None else sample(gradient)
        if values is not None and self.values is not None:
            alike = values.device == self.values.device and values.dtype is self.values.dtype
            return None if alike and torch.equal(values, self.values) else gradient
        return None if gradient is self._gradient() and version_of(gradient) == self._version else gradient


class Additions:
    """How often one gradient is written to in an iteration, by its version: between looks, all that is asked."""

    def __init__(self) -> None:
        self._parameter: weakref.ref[Tensor] | None = None
        self._usual: int | None = None  # beyond one for each scaled loss
        self._start: tuple[weakref.ref[Tensor], int] | None = None  # the gradient at the end of the last iteration

    def begin(self) -> None:
        """An iteration is over."""
        gradient = self._gradient()
        self._start = None if gradient is None else (weakref.ref(gradient), version_of(gradient))

    def expect(self, pairs: Sequence[tuple[Tensor, Tensor]], losses: int) -> None:
        """A backward is over in which everything was looked at."""
        if pairs:
            self._parameter = weakref.ref(pairs[0][0])
            self._usual = self._count(losses)

    def strange(self, losses: int) -> bool:
        """Whether something else than the usual backwards wrote to the gradient."""
        return self._usual is not None and self._count(losses) not in (None, self._usual)

    def _gradient(self) -> Tensor | None:
        parameter = None if self._parameter is None else self._parameter()
        return None if parameter is None else parameter.grad

    def _count(self, losses: int) -> int | None:
        gradient = self._gradient()
        if gradient is None:
            return None
        same = self._start is not None and self._start[0]() is gradient
        return version_of(gradient) - (self._start[1] if same and self._start else 0) - losses
