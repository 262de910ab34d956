"""Ghosts: tensors that have a dtype, sizes and strides, and no values.

All ghosts of a device share one block of memory as large as the largest of them. Nothing reads or writes it, so on a
CPU the operating system never gives it pages, and a model of any size fits. It is memory nevertheless: code that reads
a ghost past the dispatcher reads numbers, and not what is elsewhere.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..._core.base.patches import Patches
from .paths import unknown

_READERS = ("tolist", "numpy", "__array__")  # methods that give the numbers to Python, and no operation does it
_PLAIN = (Tensor, nn.Parameter)
_LARGEST = {"cpu": 2**32}  # bytes; of a larger one all strides are 0
_OTHERS = 2**28  # on devices where memory that nobody reads is memory too
Key = tuple[str, int | None]


class Ghosts:
    """The ghosts of one dry run, and the tensors that ghosts were written into."""

    def __init__(self) -> None:
        self._blocks: dict[Key, torch.UntypedStorage] = {}
        self._known: dict[int, Any] = {}  # what holds no values, by the address of its storage; keeps it alive

    def of(self, tensor: Tensor, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        """A ghost with the sizes and strides of a tensor."""
        dtype, device = dtype or tensor.dtype, device or tensor.device
        size, stride = tensor.size(), tensor.stride()
        last = sum((length - 1) * step for length, step in zip(size, stride, strict=True)) if tensor.numel() else -1
        if (last + 1) * dtype.itemsize > _LARGEST.get(device.type, _OTHERS):
            stride, last = (0,) * len(size), 0
        block = self._block(device, (last + 1) * dtype.itemsize)
        return torch.empty(0, dtype=dtype, device=device).set_(block, 0, size, stride)

    def spoil(self, tensor: Tensor) -> None:
        """From now on the values of a tensor are not known."""
        self._known.setdefault(_address(tensor), tensor)

    def __contains__(self, tensor: Tensor) -> bool:
        return type(tensor) in _PLAIN and tensor.layout is torch.strided and _address(tensor) in self._known

    def _block(self, device: torch.device, size: int) -> torch.UntypedStorage:
        key = device.type, device.index
        block = self._blocks.get(key)
        if block is None or block.nbytes() < size:
            # torch leaves it untyped
            block = torch.UntypedStorage(max(size, 64), device=device)  # type: ignore[no-untyped-call]
            self._blocks[key] = block
            self._known[block._cdata] = block
        return block


def _address(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage()._cdata
    return address


@contextlib.contextmanager
def unread(ghosts: Ghosts) -> Iterator[None]:
    """Whoever reads the memory of a ghost past the dispatcher is stopped too; other tensors are read as ever."""

    def read(following: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor in ghosts:
            raise unknown("asks for values that are not computed")
        return following(tensor, *args, **kwargs)

    with Patches().for_a_block() as patches:
        for name in _READERS:
            patches.instead(Tensor, name, read)
        patches.enter_thread()
        yield
