"""Numbers of every dtype, as the bits that a tensor stores.

Bits, because they reach every value that a dtype has, and because
many dtypes (float4, the bits and quantized ones) cannot be made from numbers.
"""

import cmath
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from .._core.base.dtypes import BY_NAME, TABLE, Kind
from .._core.base.quiet import quiet

# Integers as wide as the elements of a dtype, of those that torch computes in.
_RAW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LANES = {dtype: dtype.to_real() for dtype, info in TABLE.items() if info.kind is Kind.COMPLEX}
_QUANTIZED = {"quint8": torch.uint8, "qint8": torch.int8, "qint32": torch.int32}
_PACKED = ("quint4x2", "quint2x4")  # several to a byte: torch writes nothing but zeros
_FLOAT4 = "float4_e2m1fn_x2"
_ROUND = (0, 1, 2, 3, 10, 100)


@functools.cache
def allocatable() -> tuple[torch.dtype, ...]:
    """The dtypes of which the running torch makes tensors, float32 first and what only stores last."""
    usual = "float32 float64 float16 bfloat16 int64 int32 bool uint8 complex64".split()
    order = dict.fromkeys([*map(BY_NAME.__getitem__, usual), *sorted(TABLE, key=lambda d: TABLE[d].kind)])
    return tuple(filter(_can_make, order))


def _can_make(dtype: torch.dtype) -> bool:
    try:
        tensor_of(dtype, (1,), (0,) * (2 if dtype in _LANES else 1))
    except (RuntimeError, NotImplementedError, TypeError):  # a dtype that the running torch only names
        return False
    return True


def lane_of(dtype: torch.dtype) -> torch.dtype:
    """What one number is made of: a complex one of two floating ones."""
    return _LANES.get(dtype, dtype)


def _width(dtype: torch.dtype) -> int:
    """How many bits of an element may be set."""
    row = TABLE[dtype]
    if row.kind is Kind.BOOL:
        return 1
    in_part = row.kind is Kind.STORAGE and row.name.lstrip("u").startswith("int")  # of a byte
    return row.digits + row.signed if in_part else 8 * dtype.itemsize


def _bits(values: Iterable[Any], dtype: torch.dtype) -> list[int]:
    """The bits of numbers."""
    numbers = list(values)
    if TABLE[dtype].kind is Kind.INT:
        return [number % (1 << 8 * dtype.itemsize) for number in numbers]
    raw = torch.tensor(numbers, dtype=dtype, device="cpu").view(_RAW[dtype.itemsize])
    return [bits % (1 << 8 * dtype.itemsize) for bits in raw.tolist()]


def _numbers(dtype: torch.dtype) -> st.SearchStrategy[Any]:
    """Numbers of a dtype: any, and those that programs stumble over.

    Each list grows, with the sign apart, so that a failure shrinks along it to the first number that still fails.
    """
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        whole = _with_signs(st.sampled_from((*_ROUND, info.max // 2, info.max - 1, info.max, info.max + 1)))
        return st.integers(info.min, info.max) | whole.map(lambda n: min(max(n, info.min), info.max))
    real = torch.finfo(dtype)
    large = (*map(float, _ROUND), real.max / 2, real.max, math.inf, math.nan)
    small = (0.5, 0.1, 1 + real.eps, 1 - real.eps / 2, real.eps, real.tiny, real.tiny / 2, real.tiny * real.eps)
    width: Any = {torch.float16: 16, torch.float64: 64}.get(dtype, 32)
    return st.floats(width=width) | _with_signs(st.sampled_from(large)) | _with_signs(st.sampled_from(small))


def _with_signs(magnitudes: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(magnitudes, st.booleans()).map(lambda pair: -pair[0] if pair[1] else pair[0])


def _is_finite(bits: int, dtype: torch.dtype) -> bool:
    raw = torch.tensor([_signed(bits, dtype)], dtype=_RAW[dtype.itemsize], device="cpu")
    return bool(raw.view(dtype).to(torch.float64).isfinite())


def _has_numbers(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and TABLE[dtype].name != _FLOAT4


def _edges(dtype: torch.dtype) -> list[int]:
    """The bits of float8's edges."""
    if not _has_numbers(dtype):
        return []
    real = torch.finfo(dtype)
    numbers = (1.0, real.max, real.tiny, real.eps, 0.0, math.inf, math.nan)
    return _bits([*numbers, *(-number for number in numbers)], dtype)


@functools.cache
def elements(dtype: torch.dtype, finite: bool) -> st.SearchStrategy[tuple[int, ...]]:
    """The bits of one element: of numbers, or every pattern that there is of what is no number to Python."""
    lane = lane_of(dtype)
    top = (1 << _width(lane)) - 1
    # As many draws as a number takes: hypothesis counts what takes fewer as simpler.
    bits: st.SearchStrategy[int] = st.integers(0, top) | st.sampled_from((0, 1, top, *_edges(lane)))
    if TABLE[lane].kind in (Kind.INT, Kind.FLOAT):
        bits = _numbers(lane).map(lambda number: _bits([number], lane)[0])
    if finite and _has_numbers(lane):
        bits = bits.filter(lambda pattern: _is_finite(pattern, lane))
    return st.tuples(bits, bits) if dtype in _LANES else st.tuples(bits)


@functools.cache
def usual(dtype: torch.dtype) -> st.SearchStrategy[tuple[int, ...]]:
    """The bits of one element that a model could take: of floats 0, or from 1/16 to 16."""
    lane = lane_of(dtype)
    if TABLE[lane].kind is not Kind.FLOAT:
        return elements(dtype, True)
    width: Any = {torch.float16: 16, torch.float64: 64}.get(lane, 32)
    sizes = st.sampled_from((0.0, 1.0, 2.0, 10.0)) | st.floats(1 / 16, 16, width=width)
    bits = _with_signs(sizes).map(lambda number: _bits([number], lane)[0])
    return st.tuples(bits, bits) if dtype in _LANES else st.tuples(bits)


def converted(values: st.SearchStrategy[Any], dtype: torch.dtype, finite: bool) -> st.SearchStrategy[tuple[int, ...]]:
    """A user's own numbers as bits of a dtype; one that it cannot hold raises when it is drawn."""

    def convert(value: Any) -> tuple[int, ...]:
        number = value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value
        lane = lane_of(dtype)
        split = dtype in _LANES and isinstance(number, int | float | complex)
        lanes: tuple[Any, ...] = (number.real, number.imag) if split else (number,)
        if not all(_holds(lane, one) for one in lanes):
            narrow = lane.itemsize in (2, 4) and isinstance(number, float)
            advice = f"; draw with st.floats(width={8 * lane.itemsize})" if narrow else ""
            raise ValueError(f"elements= gave {value!r}, which {TABLE[dtype].name} cannot hold{advice}")
        whole = not lane.is_floating_point
        return tuple(_bits([int(one) if whole else one for one in lanes], lane))

    return (values.filter(_finite) if finite else values).map(convert)


def _finite(value: Any) -> bool:
    return not isinstance(value, int | float | complex) or cmath.isfinite(value)


def _holds(lane: torch.dtype, value: Any) -> bool:
    """Whether a number is one of a dtype, but for rounding."""
    if not isinstance(value, int | float) or TABLE[lane].name in (*_QUANTIZED, *_PACKED):
        return False
    try:
        if not lane.is_floating_point:
            return bool(torch.tensor([int(value)], dtype=lane, device="cpu").item() == value)
        made = torch.tensor([value], dtype=lane, device="cpu").to(torch.float64).item()
    except (RuntimeError, ValueError, OverflowError):
        return False
    if not math.isfinite(value):
        return made == value or made != made != value != value
    info = torch.finfo(lane)
    return math.isfinite(made) and abs(value) <= info.max * (1 + info.eps)


def tensor_of(
    dtype: torch.dtype,
    shape: tuple[int, ...],
    fill: tuple[int, ...],
    others: Iterable[tuple[int, tuple[int, ...]]] = (),
    lay: Callable[[Tensor], Tensor] = Tensor.contiguous,
) -> Tensor:
    """A tensor on the CPU with the bits of `fill` everywhere but at `others`, pairs of flat index and bits.

    Bits are two patterns for a complex element; `lay` puts a tensor, in a dtype that torch can copy, into a layout.
    """
    name, lane = TABLE[dtype].name, lane_of(dtype)
    if name in _PACKED:
        return _quietly(lambda: torch._empty_affine_quantized(shape, scale=1.0, zero_point=0, dtype=dtype))
    raw = torch.tensor([_signed(n, lane) for n in fill], dtype=_RAW[lane.itemsize], device="cpu")
    raw = raw.expand(*shape, len(fill))
    for n, (index, bits) in enumerate(others):
        raw = raw if n else raw.clone(memory_format=torch.contiguous_format)
        raw.view(-1, len(fill))[index] = torch.tensor([_signed(one, lane) for one in bits], device="cpu")
    if dtype in _LANES:
        return _quietly(lambda: lay(raw.contiguous().view(lane).view(dtype)[..., 0]))
    if name in _QUANTIZED:
        ints = raw[..., 0].contiguous().view(_QUANTIZED[name])
        return _quietly(lambda: torch._make_per_tensor_quantized_tensor(ints, 1.0, 0))
    return lay(raw[..., 0]).view(dtype)


def _quietly(make: Callable[[], Tensor]) -> Tensor:
    """Quantized tensors are deprecated, small complex dtypes experimental; as long as they are there they are met."""
    with quiet():
        return make()


def _signed(bits: int, lane: torch.dtype) -> int:
    """Bits as the integer that torch stores them in."""
    width = 8 * lane.itemsize
    return bits - (1 << width) if width > 8 and bits >> width - 1 else bits
