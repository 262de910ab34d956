"""Shadow memory: for each storage of the program the same values as they would be in a wider dtype.

It goes by storage, so a view, an alias and a write in place need no code of their own: the shadow of a view is a view
of the shadow. Only what was computed has one; the values of a tensor that the audit meets are right as they are, and
are read anew each time, as NumPy may have changed them.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..._core.base.dtypes import WIDER
from ..operands import all_values, plain, shadowed
from .measure import Error, errors_of

SINGLE = frozenset([torch.float32, torch.complex64])
DOUBLE = frozenset([torch.float64, torch.complex128])  # right as they are, but for what they are computed from
_REST = 1000.0  # an error of what should be zero
_OF_HALF = 2.0**-12  # an error of values that half precision has, and float32 only where digits cancel


class ShadowStorage:
    """The shadow of one storage."""

    __slots__ = (
        "beside",
        "buffer",
        "cancellation",
        "data",
        "dtype",
        "error",
        "errors",
        "floor",
        "integers",
        "merged",
        "origin",
        "path",
        "read",
        "ref",
        "row",
        "size",
        "squared",
        "trained",
        "whole",
        "writes",
    )  # fmt: skip

    def __init__(self, ref: "weakref.ref[Any]", tensor: Tensor, size: int, buffer: Tensor, row: Any) -> None:
        self.ref, self.dtype, self.size = ref, tensor.dtype, size
        self.buffer, self.row = buffer, row
        self.cancellation = 1.0  # the size of what was subtracted, as a multiple of the size of the difference
        self.origin: Any = None  # the row in which that was subtracted
        self.floor = 0.0  # the size that counts where the values are nearly zero
        self.error = 0.0  # when it was measured last, as a share of what they were computed from: of the worst row
        self.whole = 0.0  # the same, of all values
        self.read = False
        self.beside: Any = None  # what rounding took from the smaller of two numbers that were added, see `Beside`
        self.data = False  # what data were rounded to, and nothing has computed with
        self.integers = False  # computed from integers that its dtype does not have
        self.squared = False  # a square, or a sum of squares
        self.merged: Any = None  # the row of a sum that is like one of its addends: how much of it, of how many
        self.path: Any = None  # of its values since it is written to
        self.trained = False  # a parameter, whose values the program writes itself
        self.writes = 1  # the first, and those in place
        self.errors: dict[Any, Error] = {}  # of its views, as measured since it was written to last

    def like(self, tensor: Tensor) -> Tensor:
        """The part of it that a tensor shows."""
        buffer = self.buffer if self.dtype is tensor.dtype else self.flat(tensor.is_complex())
        shadow = buffer.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        if tensor.is_conj():
            shadow = shadow.conj()
        return shadow.neg() if tensor.is_neg() else shadow

    def flat(self, as_complex: bool) -> Tensor:
        """The buffer as it lies in memory, as complex numbers or as pairs of real ones."""
        flat = self.buffer.as_strided((self.size // self.dtype.itemsize,), (1,), 0)
        if as_complex == flat.is_complex():
            return flat
        return torch.view_as_complex(flat.view(-1, 2)) if as_complex else torch.view_as_real(flat).view(-1)

    def error_of(self, tensor: Tensor) -> Error:
        """How far the values of a tensor are from it; a view is measured once, until one of the two is written to."""
        view = _view(tensor)
        if view not in self.errors:
            measure([(tensor, self)])
        return self.errors[view]

    def target(self, tensor: Tensor) -> Tensor:
        """The part that a tensor shows, for an operation to write to."""
        self.errors.clear()
        return self.like(tensor)

    @property
    def is_rest(self) -> bool:
        """Whether it is what rounding has taken, which a program keeps for its next step: it should be zero."""
        return self.writes > 1 and self.whole > _REST

    def write(self, tensor: Tensor, values: Tensor) -> None:
        """Values take the place of the part that a tensor shows."""
        self.target(tensor).copy_(values)


def measure(pairs: Iterable[tuple[Tensor, ShadowStorage]]) -> None:
    """Measure tensors of whose errors some are asked for next: a device is waited for once."""
    new = [(tensor, held, view) for tensor, held in pairs if (view := _view(tensor)) not in held.errors]
    errors = errors_of([(tensor, held.like(tensor)) for tensor, held, _ in new])
    for (_, held, view), error in zip(new, errors, strict=True):
        held.errors[view] = error


def _view(tensor: Tensor) -> Any:
    """What a view shows, and since when."""
    version = None if tensor.is_inference() else tensor._version
    return version, tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()


class Memory:
    """The shadows of the storages that are alive.

    Attributes:
        kind: the class of one shadow.
        wider: the dtype of a shadow, by the program's dtype.
    """

    kind: ClassVar[type[ShadowStorage]] = ShadowStorage
    wider: Mapping[torch.dtype, torch.dtype] = {**WIDER, **{dtype: dtype for dtype in DOUBLE}}

    def __init__(self, left: Callable[[ShadowStorage], None]) -> None:
        self._of: dict[int, ShadowStorage] = {}
        self._left = left  # told of each that nobody has read

    def __len__(self) -> int:
        return len(self._of)

    def all(self) -> list[ShadowStorage]:
        return list(self._of.values())

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(held.buffer.nbytes for held in self.all())

    def get(self, tensor: Tensor) -> ShadowStorage | None:
        storage = tensor.untyped_storage()
        held = self._of.get(storage._cdata)
        if held is None or held.size != storage.nbytes() or held.ref() is not storage:
            return None
        same = held.dtype is tensor.dtype or held.dtype.to_real() is tensor.dtype.to_real()
        return held if same else None

    def find(self, tensor: Tensor) -> ShadowStorage | None:
        """The shadow of any tensor."""
        known = plain(tensor) if tensor.dtype in DOUBLE else shadowed(tensor)
        return self.get(tensor) if known else None

    def source(self, tensors: Iterable[Tensor]) -> Any:
        """The row that the first one with a shadow comes from."""
        helds = map(self.find, tensors)
        return next((held.row for held in helds if held is not None and held.row is not None), None)

    def takes(self, tensor: Tensor, inputs: Iterable[Tensor]) -> bool:
        """Whether a result of an operation can have a shadow; one in float64 only if it comes from half values or data.

        What is computed in float64 from what float32 has computed was widened by somebody who knows of the digits, but
        for what has lost them before.
        """
        if tensor.dtype in DOUBLE:
            shadows = ((one.dtype, self.find(one)) for one in inputs)
            known = any(
                held is not None and (held.data or dtype not in SINGLE or held.whole * held.cancellation > _OF_HALF)
                for dtype, held in shadows
            )
            return known and tensor.dtype in self.wider and plain(tensor)
        return shadowed(tensor)

    def read(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """The shadow, or where there is none the values, in a dtype."""
        held = self.get(tensor)
        if held is None:
            return tensor.to(dtype)
        held.read = True
        shadow = held.like(tensor)
        return shadow if shadow.dtype is dtype else shadow.to(dtype)

    def hold(self, tensor: Tensor, row: Any = None) -> ShadowStorage:
        """The shadow; made of the values if there is none yet."""
        held = self.get(tensor)
        if held is None:
            whole = all_values(tensor.untyped_storage(), tensor.dtype)
            held = self._hold_as(tensor, whole.to(self.wider[tensor.dtype], copy=True), row)
        return held

    def set(self, tensor: Tensor, value: Tensor, row: Any) -> ShadowStorage:
        """Give a new tensor its shadow, which may become the buffer itself."""
        dtype, count = self.wider[tensor.dtype], tensor.untyped_storage().nbytes() // tensor.itemsize
        value = value.to(device=tensor.device, dtype=dtype)
        held = self.get(tensor)
        if held is not None and held.row is row and held.buffer.dtype is dtype:  # results that share one storage
            held.like(tensor).copy_(value)
            return held
        whole = value.numel() == count and value.untyped_storage().nbytes() == count * value.itemsize
        if whole and value.stride() == tensor.stride() and not tensor.storage_offset() and not value.is_conj():
            buffer = value.as_strided((count,), (1,), 0)
        else:
            buffer = torch.empty(count, dtype=dtype, device=tensor.device)
            buffer.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(value)
        return self._hold_as(tensor, buffer, row)

    def drop(self, tensor: Tensor) -> None:
        """From now on the values are right as they are."""
        self._of.pop(tensor.untyped_storage()._cdata, None)

    def forget(self) -> None:
        """Give all memory back."""
        self._of.clear()

    def clear(self) -> None:
        """Those that nobody has read by now never will be."""
        while self._of:
            self._over(self._of.popitem()[1])

    def _hold_as(self, tensor: Tensor, buffer: Tensor, row: Any) -> ShadowStorage:
        storage = tensor.untyped_storage()
        key, of = storage._cdata, self._of

        def gone(ref: "weakref.ref[Any]") -> None:
            held = of.get(key)
            if held is not None and held.ref is ref:
                del of[key]
                self._over(held)

        held = of[key] = self.kind(weakref.ref(storage, gone), tensor, storage.nbytes(), buffer, row)
        return held

    def _over(self, held: ShadowStorage) -> None:
        if not held.read:
            self._left(held)
