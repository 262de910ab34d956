"""What many tests share: names of dtypes, and equality to the bit."""

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
F8 = torch.float8_e4m3fn

LIBRARIES_WARN = [  # of Lightning, Transformers and Accelerate, by themselves
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*GPU available but not used:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning"),
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),  # the first step is skipped
    pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing.* is deprecated:FutureWarning"),
]


def reason(err):
    """Why a command of `python -m dtypeguard` ended with status 2, from its standard error."""
    return next(line for line in err.splitlines() if " error: " in line).partition(" error: ")[2]


class _Nested(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, depth, program):
        ctx.depth, ctx.program = depth, program
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            if ctx.depth:
                in_backward(ctx.depth - 1, ctx.program)
            else:
                ctx.program()
        return grad, None, None


def in_backward(depth, program):
    """Runs a program in a backward within a backward, and so on.

    Torch runs the 61st in a thread of autograd, as it runs all backward on a GPU: that of a program at depth 60 has no
    line of Python below it.
    """
    _Nested.apply(torch.ones(1, requires_grad=True), depth, program).sum().backward()


def same(one: Any, other: Any) -> bool:
    """Equal to the bit."""
    these, one_spec = pytree.tree_flatten(one)
    those, other_spec = pytree.tree_flatten(other)
    return one_spec == other_spec and all(map(_equal, these, those))


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return bool(one == other) or one != one
    alike = one.dtype is other.dtype and one.shape == other.shape and one.device == other.device
    return alike and (one.is_meta or torch.equal(_bytes(one), _bytes(other)))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().reshape(-1).view(torch.uint8)


def assert_same(one: Any, other: Any) -> None:
    """Bit for bit, NaN included."""
    left, right = pytree.tree_flatten(one), pytree.tree_flatten(other)
    assert left[1] == right[1]
    for a, b in zip(left[0], right[0], strict=True):
        assert type(a) is type(b)
        if not isinstance(a, torch.Tensor):
            assert a == b or a != a
            continue
        assert (a.dtype, a.device, a.layout, a.requires_grad) == (b.dtype, b.device, b.layout, b.requires_grad)
        if a.is_meta:
            assert a.shape == b.shape
            continue
        if a.is_nested:
            assert_same(list(a.unbind()), list(b.unbind()))
            continue
        if a.layout is torch.strided:
            assert a.stride() == b.stride()
        a, b = (t.to_dense() if t.layout is not torch.strided else t for t in (a, b))
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
