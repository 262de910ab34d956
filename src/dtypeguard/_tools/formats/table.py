"""The one table of formats: an element, what shares a scale, and the operands that are rounded.

The formats with a power of two for each 32 elements are those of the OCP Microscaling Formats (MX) Specification 1.0;
NVFP4 and the scales of float8 and of integers are rounded as torchao rounds them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch

from ..._core.base.pyproject import near


@dataclass(frozen=True, slots=True)
class Element:
    """The numbers that one element can be."""

    bits: float
    digits: int  # of the significand, behind the point
    lowest: int  # the exponent from which on the spacing no longer shrinks; that of an integer is its largest
    largest: float  # what is larger becomes this
    least: float | None = None  # the smallest, where it is not the negative of the largest
    infinite: bool = False  # whether what is larger becomes infinite instead


class Scale(Enum):
    """How the elements of a block are scaled."""

    NONE = "none"
    POWER = "a power of two"  # e8m0
    REAL = "a float32"
    TWICE = "an e4m3, and a float32 for the tensor"


E4M3, E5M2 = Element(8, 3, -6, 448.0), Element(8, 2, -14, 57344.0)
E2M3, E3M2, E2M1 = Element(6, 3, 0, 7.5), Element(6, 2, -2, 28.0), Element(4, 1, 0, 6.0)
_INT8, _INT4 = Element(8, 7, 7, 127.0, -128.0), Element(4, 3, 3, 7.0, -8.0)
_TF32 = Element(19, 10, -126, float("inf"), infinite=True)
_BF16 = Element(16, 7, -126, (2 - 2**-7) * 2.0**127, infinite=True)
_FP16 = Element(16, 10, -14, 65504.0, infinite=True)

WHOLE = 0  # as a size of a block: all there is along this axis


@dataclass(frozen=True, slots=True)
class Format:
    """What becomes of the operands of a matrix product."""

    name: str  # with its options, as the caller wrote it
    element: Element  # of weights and activations
    scale: Scale = Scale.NONE  # of a block
    block: tuple[int, int] = (WHOLE, WHOLE)  # of a weight: rows, and elements along the contraction axis
    tile: tuple[int, int] = (WHOLE, WHOLE)  # of an activation or a gradient
    multiple: int = 1  # what a weight's axes must be divisible by, for kernels to take it
    activations: bool = True  # whether these are rounded too
    gradient: Element | None = None  # the element of gradients
    up: bool = False  # whether a power of two is rounded up: nothing saturates, as torchao and cuBLAS do by default
    stochastic: bool = False  # whether rounding is up or down at random, the nearer the likelier
    rotated: bool = False  # whether a random Hadamard transform along the contraction axis spreads outliers first

    @property
    def bits(self) -> float:
        """Of one weight, with its share of the scales."""
        rows, along = self.block
        per = {Scale.POWER: 8.0, Scale.TWICE: 8.0, Scale.REAL: 16.0 if not self.activations else 32.0}
        return self.element.bits + (per[self.scale] / (rows * along) if self.scale in per and rows and along else 0.0)


def _block(name: str, element: Element, scale: Scale, size: int) -> Format:
    return Format(name, element, scale, (1, size), (1, size), multiple=size)


_ROWS = (
    Format("fp8", E4M3, Scale.REAL, multiple=16),
    Format("fp8:row", E4M3, Scale.REAL, (1, WHOLE), (1, WHOLE), multiple=16),
    Format("fp8:block", E4M3, Scale.REAL, (128, 128), (1, 128), multiple=128),
    _block("mxfp8", E4M3, Scale.POWER, 32),
    _block("mxfp6", E2M3, Scale.POWER, 32),
    _block("mxfp4", E2M1, Scale.POWER, 32),
    _block("nvfp4", E2M1, Scale.TWICE, 16),
    Format("int8", _INT8, Scale.REAL, (1, WHOLE), activations=False),
    Format("int4", _INT4, Scale.REAL, (1, 128), multiple=128, activations=False),
    Format("tf32", _TF32),
    Format("bf16", _BF16),
    Format("fp16", _FP16),
)
FORMATS = {row.name: row for row in _ROWS}
_Takes = Callable[[Format], bool]
# What may follow a format's name: what it changes, and the formats that take it.
_OPTIONS: dict[str, tuple[dict[str, Any], _Takes]] = {
    "sr": ({"stochastic": True}, lambda row: not row.element.infinite),
    "rceil": ({"up": True}, lambda row: row.scale is Scale.POWER),
    "hadamard": ({"rotated": True}, lambda row: row.scale is not Scale.NONE and row.tile[1] != WHOLE),
    "e5m2": ({"gradient": E5M2}, lambda row: row.element is E4M3),
    "e3m2": ({"element": E3M2}, lambda row: row.element is E2M3),
}
_GROUPS = range(16, 1025)  # sizes of int4's groups
_MEANT = {"float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "float4_e2m1fn_x2": "nvfp4", "float8_e8m0fnu": "mxfp8"}
_ALIASES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}


def format_of(value: object) -> Format:
    """The row of a format's name, with its options: `nvfp4`, `int4:64`, `mxfp8:e5m2`, `nvfp4:sr:hadamard`."""
    if not isinstance(value, str | torch.dtype):
        kind = type(value).__name__
        raise TypeError(f"compare: format={value!r} is of type {kind}: pass a name, or a tuple of names")
    name, *options = str(value).removeprefix("torch.").lower().replace(" ", "").split(":")
    name = _ALIASES.get(name, name)
    kind = next((option for option in options if f"{name}:{option}" in FORMATS), "")
    if kind:
        options.remove(kind)
        name = f"{name}:{kind}"
    row = FORMATS.get(name)
    if row is None:
        meant = near(_MEANT.get(name, name), FORMATS)
        raise ValueError(f"compare: format={str(value)!r} is unknown{meant}: use {', '.join(FORMATS)}")
    for number, option in enumerate(options):
        if option in options[:number] or (option.isdecimal() and any(map(str.isdecimal, options[:number]))):
            raise ValueError(f"compare: format={str(value)!r} says one thing twice: {option!r}")
        row = _with_option(row, option, str(value))
    return replace(row, name=":".join((name, *options)))


def _with_option(row: Format, option: str, value: str) -> Format:
    """A format with an option."""
    changes, takes = _OPTIONS.get(option, ({}, lambda row: False))
    if takes(row):
        return replace(row, **changes)
    grouped = row.element is _INT4
    if grouped and option.isdecimal() and int(option) in _GROUPS:
        return replace(row, block=(1, int(option)), multiple=int(option))
    legal = [key.removeprefix(f"{row.name}:") for key in FORMATS if key.startswith(f"{row.name}:")]
    legal += [key for key, (_, takes) in _OPTIONS.items() if takes(row)]
    meant = near(option, legal)
    legal += [f"the size of its groups, {_GROUPS[0]} to {_GROUPS[-1]}"] if grouped else []
    raise ValueError(
        f"compare: format={value!r}: {row.name} has no option {option!r}{meant}; it takes {', '.join(legal) or 'none'}"
    )
