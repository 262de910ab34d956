"""What a kernel says to operands of some dtypes: asked of the kernel itself, with tensors of size 1.

Whether an operation takes its operands, and the dtypes of what it gives, depends on dtypes and numbers of axes, hardly
ever on sizes. So each question is put once to the real kernel, with tensors of size 1, and the answer is kept. Some
calls make no sense at that size (the groups of a convolution); that is known when the same call of one dtype, float32,
is refused. Then integers among the arguments, which may be sizes, are made 1 too; and then the call is made as it is,
if it is small. If that does not tell either, there is no answer.
"""

import contextlib
import enum
import functools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree

AFFORDABLE = 2**21  # elements of a call that is made as it is
_KEPT = 50_000  # answers
# What a question may remember of a call besides tensors: anything else might be the user's, and would be kept alive.
_PLAIN = (int, float, complex, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_ORDINARY = {True: torch.float32, False: torch.complex64}

Region = tuple[str, torch.dtype] | None


class _Size(enum.Enum):
    """The sizes with which a kernel is asked, in turn."""

    ONE = "with tensors of size 1"
    ONES = "with tensors of size 1, and 1 for integers"
    OWN = "as it is"


class Answer(NamedTuple):
    """What a kernel said: an exception, or for each thing that comes out its dtype and device, None for no tensor."""

    error: tuple[type[Exception], str] | None
    outputs: tuple[tuple[torch.dtype, torch.device] | None, ...]
    how: str  # it was asked


_answers: dict[Any, Answer] = {}


def answer(func: Any, args: Any, kwargs: Any, region: Region, values: Callable[[Tensor], bool]) -> Answer | None:
    """The answer to a call, or None if there is none; `values` says whether a tensor has values."""
    leaves, spec = _pytree.tree_flatten((args, kwargs))
    key = func, spec, tuple(map(_key, leaves)), region
    with contextlib.suppress(TypeError):  # an argument that has no hash
        if key in _answers:
            return _answers[key]
    found = _ask(func, leaves, spec, region, values)
    if found is not None:
        if len(_answers) >= _KEPT:
            _answers.clear()
        with contextlib.suppress(TypeError):
            _answers[key] = found
    return found


def _key(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return Tensor, leaf.dtype, leaf.dim(), leaf.device.type, leaf.numel() == 0
    return (type(leaf), leaf) if type(leaf) in _PLAIN else type(leaf)


def _ask(func: Any, leaves: list[Any], spec: Any, region: Region, values: Any) -> Answer | None:
    if region is not None and _is_listed(func, region[0]):
        region = None  # autocast has cast the operands, and is off inside

    def call(size: Any, dtype: Callable[[torch.dtype], torch.dtype]) -> Any:
        def made(leaf: Any) -> Any:
            if isinstance(leaf, torch.dtype):
                return dtype(leaf)
            if isinstance(leaf, Tensor):
                return _made(leaf, size, values, dtype(leaf.dtype))
            return min(leaf, 1) if size is _Size.ONES and type(leaf) is int else leaf

        args, kwargs = _pytree.tree_unflatten(list(map(made, leaves)), spec)
        with alone(region):
            return func(*args, **kwargs)

    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    for size in _Size:
        if size is _Size.OWN and sum(t.numel() for t in tensors) > AFFORDABLE:
            return None
        error = _refusal(call, size, ordinary)
        if error is not None and not (size is _Size.OWN and is_about_dtypes(error)):
            continue
        try:
            out = call(size, lambda dtype: dtype)
        except Exception as refusal:
            return Answer((type(refusal), str(refusal)), (), size.value)
        return Answer(None, tuple(map(_kind, _pytree.tree_leaves(out))), size.value)
    return None


def _refusal(call: Any, *how: Any) -> Exception | None:
    try:
        call(*how)
    except Exception as error:
        return error
    return None


@functools.cache
def _is_listed(func: Any, device: str) -> bool:
    """Whether autocast casts the operands of an operation itself."""
    key = "AutocastCPU" if device == "cpu" else f"Autocast{device.upper()}"
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


def _kind(out: Any) -> tuple[torch.dtype, torch.device] | None:
    return (out.dtype, out.device) if isinstance(out, Tensor) else None


def is_about_dtypes(error: Exception) -> bool:
    """Whether a kernel refuses dtypes, and not sizes."""
    return re.search(r"not implemented for|dtype|[Ee]xpected .* type", str(error)) is not None


def _made(tensor: Tensor, size: "_Size", values: Any, dtype: torch.dtype) -> Tensor:
    """A tensor for a question: ones, and zeros for integers, which may be indices."""
    if size is _Size.OWN and values(tensor):
        return tensor.detach().to(dtype, copy=True)
    shape = tensor.size() if size is _Size.OWN else [min(length, 1) for length in tensor.shape]
    number = 1 if dtype.is_floating_point or dtype.is_complex else 0
    return torch.full(shape, number, dtype=torch.float32, device=tensor.device).to(dtype)


def ordinary(dtype: torch.dtype) -> torch.dtype:
    """float32, or complex64, for a floating dtype: the one for which there is a kernel of everything."""
    return _ORDINARY[dtype.is_floating_point] if dtype.is_floating_point or dtype.is_complex else dtype


@contextlib.contextmanager
def alone(region: Region) -> Iterator[None]:
    """A call that nobody hears of. Below a dispatch mode no autocast is on; kernels that call others ask for it."""
    inside = contextlib.nullcontext() if region is None else torch.autocast(region[0], dtype=region[1])
    with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(()), torch.no_grad(), inside:
        yield
