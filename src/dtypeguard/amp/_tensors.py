"""What is looked at in parameters and gradients: small samples, and nothing that any rank must wait for."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._core.base.dtypes import HALF

_SAMPLE = 256
_NODES = 4096  # of a graph, that are looked at
_PIECE = 2**24  # elements that are copied in float64 at a time


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds: the shard of a DTensor, the values of a sparse tensor."""
    tensor = getattr(tensor, "_local_tensor", tensor).detach()
    tensor = tensor._values() if tensor.is_sparse else tensor
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written to; always -1 for one made in inference mode, which does not count."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    return -1 if tensor.is_inference() else int(tensor._version)


def sample(tensor: Tensor, number: int = _SAMPLE) -> Tensor | None:
    """About so many elements as a view, the same ones for all tensors of these strides; None where there is none.

    Tensors that are no dense block of memory, and subclasses that keep something else in memory, have none.
    """
    tensor = local(tensor)
    if tensor.layout is not torch.strided or not tensor.numel() or tensor.is_meta or type(tensor) is not Tensor:
        return None
    if not tensor.is_contiguous():
        tensor = tensor.permute(sorted(range(tensor.ndim), key=tensor.stride, reverse=True))
        if not tensor.is_contiguous():
            return None
    return tensor.view(-1)[:: max(1, tensor.numel() // number)]


def is_copy(wide: Tensor, narrow: Tensor) -> bool:
    """Whether a float32 tensor holds the values of a half one, as a master copy of weights does."""
    if wide.dtype is not torch.float32 or narrow.dtype not in HALF or wide.shape != narrow.shape:
        return False
    theirs, mine = sample(wide), sample(narrow)
    return theirs is not None and mine is not None and torch.equal(theirs.to(mine), mine)


def spread(items: Sequence[Any], number: int) -> list[Any]:
    """`number` of the items, evenly chosen, the first and the last among them."""
    if len(items) <= number:
        return list(items)
    return [items[round(n * (len(items) - 1) / (number - 1))] for n in range(number)]


def finite(gradients: Sequence[Tensor]) -> bool:
    """Whether all gradients surely are finite; one pass, one answer from the device."""
    parts = [part for part in map(local, gradients) if part.numel()]  # a rank may hold an empty shard
    return not parts or bool(torch.stack(torch._foreach_norm(parts, math.inf)).isfinite().all())


def norm_of(gradients: Iterable[Tensor], order: float) -> float:
    """The norm over all gradients together, in float64."""
    pieces = (piece for part in map(local, gradients) for piece in torch.split(part.reshape(-1), _PIECE))
    norms = [torch.linalg.vector_norm(piece.double(), order).cpu() for piece in pieces if piece.numel()]
    return float(torch.linalg.vector_norm(torch.stack(norms), order)) if norms else 0.0


def computed_in(outputs: Iterable[Tensor]) -> tuple[set[torch.dtype], bool]:
    """The dtypes between the parameters and a loss, by its graph; and whether all of it could be seen.

    It stops at the first float16. Compiled code and Python functions show only what enters and leaves them.
    """
    dtypes: set[torch.dtype] = set()
    known: set[Any] = set()
    open_nodes = [output.grad_fn for output in outputs if output.grad_fn is not None]
    whole = True
    while open_nodes and torch.float16 not in dtypes:
        node = open_nodes.pop()
        if node in known:
            continue
        known.add(node)
        if len(known) > _NODES:
            return dtypes, False
        whole = whole and not isinstance(node, torch.autograd.function.BackwardCFunction)
        dtypes.update(meta.dtype for meta in node._input_metadata)
        open_nodes += [child for child, _ in node.next_functions if child is not None]
    return dtypes, whole
