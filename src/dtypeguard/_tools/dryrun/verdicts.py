"""What a kernel says to operands of some dtypes: asked of the kernel itself, with tensors of size 1.

Whether an operation takes its operands, and the dtypes of what it gives, depends on dtypes and numbers of axes, hardly
ever on sizes. So each question is put once to the real kernel, with tensors of size 1, and the answer is kept. Some
calls make no sense at that size (the groups of a convolution); that is known when the same call of one dtype, float32,
is refused. Then integers among the arguments, which may be sizes, are made 1 too; and then the call is made as it is,
if it is small. If that does not tell either, there is no answer.

Kernels that only torch itself calls believe the sizes that they are told. So an integer that may be a size is never
larger than the tensors are, and each tensor lies in the middle of more memory than it needs.
"""

import contextlib
import enum
import functools
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree

from ..._core.base import private
from ..._core.base.numbers import Numbers
from ..._core.base.quiet import quiet
from ..._engine.ops import operator_of

AFFORDABLE = 2**24  # elements of a call that is made as it is
_KEPT = 50_000  # answers
# What a question may remember of a call besides tensors: anything else might be the user's, and would be kept alive.
_PLAIN = (int, float, complex, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_MARGIN = 4096  # elements before and after a tensor of size 1
_ORDINARY = {True: torch.float32, False: torch.complex64}

Region = tuple[str, torch.dtype] | None


class _Size(enum.Enum):
    """The sizes with which a kernel is asked, in turn."""

    ONE = "with tensors of size 1"
    ONES = "with tensors of size 1, and 1 for integers"
    OWN = "as it is"
    TWO = "with tensors of size 2"  # never alone: some kernels take a short way with a single value


_BOUNDS = {_Size.ONES: 1, _Size.TWO: 2}  # of integers among the arguments


class Answer(NamedTuple):
    """What a kernel said: an exception, or for each thing that comes out its dtype and device, None for no tensor."""

    error: tuple[type[Exception], str] | None
    outputs: tuple[tuple[torch.dtype, torch.device] | None, ...]


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
    return plain(leaf)


def plain(leaf: Any) -> Any:
    """What a question remembers of an argument that is no tensor."""
    return (type(leaf), leaf) if type(leaf) in _PLAIN else type(leaf)


def _ask(func: Any, leaves: list[Any], spec: Any, region: Region, values: Any) -> Answer | None:
    """Call the kernel with sizes for which it takes ordinary dtypes, and then with the dtypes of the call."""
    if region is not None and is_listed(func, region[0]):
        region = None  # autocast has cast the operands, and is off inside

    def made(size: _Size, dtype: Callable[[torch.dtype], torch.dtype], device: str | None = None) -> Any:
        def change(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return _question_tensor(leaf, size, values, dtype(leaf.dtype), device)
            if isinstance(leaf, torch.dtype):
                return dtype(leaf)
            if isinstance(leaf, torch.device):
                return leaf if device is None else torch.device(device)
            return min(leaf, _BOUNDS[size]) if size in _BOUNDS and type(leaf) is int else leaf

        return _pytree.tree_unflatten(list(map(change, leaves)), spec)

    def call(args: Any, kwargs: Any) -> Any:
        with alone(region):
            return _NUMBERS.draw(func, args, kwargs)

    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if operator_of(func).attends:
        # PyTorch chose this kernel for these dtypes. Asked with others, cuDNN's ends the process (torch 2.11).
        out = call(*made(_Size.OWN, lambda dtype: dtype, "meta"))
        outputs = [kind and (kind[0], tensors[0].device) for kind in map(_kind, _pytree.tree_leaves(out))]
        return Answer(None, tuple(outputs))
    numbers = {leaf for leaf in leaves if type(leaf) is int and leaf > 1}
    for size in (_Size.ONE, _Size.ONES, _Size.OWN):
        if size is _Size.OWN and sum(t.numel() for t in tensors) > AFFORDABLE:
            return None
        if size is _Size.ONE and numbers:
            if not numbers.isdisjoint(_sizes(tensors)):  # one of them may be the size of an operand
                continue
            try:
                given = _pytree.tree_leaves(call(*made(size, ordinary, "meta")))
            except Exception:  # nobody says which numbers are sizes
                continue
            if not numbers.isdisjoint(_sizes([leaf for leaf in given if isinstance(leaf, Tensor)])):
                continue  # or of a result
        error = _refusal(functools.partial(call, *made(size, ordinary)))
        if error is not None and not (size is _Size.OWN and is_about_dtypes(error)):
            continue
        try:
            out = call(*made(size, lambda dtype: dtype))
        except Exception as refusal:
            return Answer((type(refusal), str(refusal)), ())
        if size is not _Size.OWN and _refusal(functools.partial(call, *made(_Size.TWO, ordinary))) is None:
            error = _refusal(functools.partial(call, *made(_Size.TWO, lambda dtype: dtype)))
            if error is not None and is_about_dtypes(error):
                return Answer((type(error), str(error)), ())
        return Answer(None, tuple(map(_kind, _pytree.tree_leaves(out))))
    return None


def _sizes(tensors: list[Tensor]) -> set[int]:
    """The sizes of tensors, and their products with those that follow: what an argument may tell of them."""
    found = set()
    for tensor in tensors:
        for first in range(tensor.dim()):
            found |= set(itertools.accumulate(tensor.shape[first:], operator.mul))
    return found


def _refusal(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


@functools.cache
def is_listed(func: Any, device: str) -> bool:
    """Whether autocast casts the operands of an operation itself."""
    key = "AutocastCPU" if device == "cpu" else f"Autocast{device.upper()}"
    return private.has_kernel(func.name(), key)


def _kind(out: Any) -> tuple[torch.dtype, torch.device] | None:
    return (out.dtype, out.device) if isinstance(out, Tensor) else None


def is_about_dtypes(error: Exception) -> bool:
    """Whether a kernel refuses dtypes, and not sizes."""
    return re.search(r"not implemented for|dtype|[Ee]xpected .* type", str(error)) is not None


def _question_tensor(tensor: Tensor, size: _Size, values: Any, dtype: torch.dtype, device: Any) -> Tensor:
    """A tensor for a question: ones, and zeros for integers, which may be indices."""
    device = tensor.device if device is None else device
    number = 1 if dtype.is_floating_point or dtype.is_complex else 0
    if size is _Size.OWN:
        if values(tensor):
            return tensor.detach().to(device, dtype, copy=True)
        return torch.full(tensor.size(), number, dtype=torch.float32, device=device).to(dtype)
    shape = [min(length, 2 if size is _Size.TWO else 1) for length in tensor.shape]
    room = torch.full((2 * _MARGIN,), number, dtype=torch.float32, device=device).to(dtype)
    return room[_MARGIN : _MARGIN + math.prod(shape)].view(shape)


def ordinary(dtype: torch.dtype) -> torch.dtype:
    """float32, or complex64, for a floating dtype: the one for which there is a kernel of everything."""
    return _ORDINARY[dtype.is_floating_point] if dtype.is_floating_point or dtype.is_complex else dtype


_NUMBERS = Numbers()  # what kernels draw here is nobody's


@contextlib.contextmanager
def alone(region: Region) -> Iterator[None]:
    """A call that nobody hears of. Below a dispatch mode no autocast is on; kernels that call others ask for it."""
    inside = contextlib.nullcontext() if region is None else torch.autocast(region[0], dtype=region[1])
    with quiet(), torch.no_grad(), inside:
        yield
