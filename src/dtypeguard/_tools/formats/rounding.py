"""Tensors rounded to a format, and back: in float32, as the products of hardware are wider than their operands."""

import functools
import math

import torch
from torch import Tensor

from .table import WHOLE, Element, Format, Scale

_EXPONENT = 0x7F800000  # its bits in a float32
_SMALLEST = 2.0**-6  # scales of NVFP4 are no smaller, as subnormal ones lose digits
_E4M3 = 448.0
_INFINITE = 129  # the exponent of what is beyond a float32
_POWERS = -127.0, 127.0  # exponents of e8m0


def rounded(
    tensor: Tensor, to: Format, axis: int = -1, role: str = "activation", generator: torch.Generator | None = None
) -> Tensor:
    """The values that a floating tensor has in a format, in its own dtype.

    A product sums along `axis`, where blocks lie; `role` is "weight", "activation" or "gradient".
    """
    if not tensor.numel() or not tensor.ndim:
        return tensor
    element = to.gradient if role == "gradient" and to.gradient is not None else to.element
    if to.scale is Scale.NONE:
        return _to_element(tensor.float(), element, None).to(tensor.dtype)
    noise = (generator or torch.Generator(tensor.device).manual_seed(0)) if to.stochastic else None
    values = tensor.movedim(axis, -1).float()
    turn = _hadamard(to.tile[1], tensor.device) if to.rotated else None
    rows, along = to.block if role == "weight" else to.tile
    padded = values if not along else _padded(values, along)
    if turn is not None:
        padded = _turned(padded, turn)
    found = _scaled(padded, element, to, (rows, along), noise)
    if turn is not None:
        found = _turned(found, turn.T)
    return found[..., : values.shape[-1]].movedim(-1, axis).to(tensor.dtype)


def _scaled(
    values: Tensor, element: Element, to: Format, block: tuple[int, int], noise: torch.Generator | None
) -> Tensor:
    """Values of which each block has a scale; blocks are of rows, and of elements along the last axis."""
    rows, along = block
    shape, height = values.shape, values.shape[-2] if values.ndim > 1 else 1
    if rows == WHOLE:  # one scale for all
        blocks = values.reshape(1, -1)
    else:
        blocks = values.reshape(-1, height, shape[-1])
        if rows > 1:
            blocks = torch.nn.functional.pad(blocks, (0, 0, 0, -height % rows))
        blocks = torch.unflatten(torch.unflatten(blocks, -1, (-1, along or shape[-1])), 1, (-1, rows)).transpose(2, 3)
    largest = blocks.abs().amax((-1, -2), keepdim=True)
    scale, inverse = _scales(largest, element, to)
    found = blocks * inverse if inverse is not None else blocks / scale
    found = _to_element(found, element, noise).mul_(scale)
    if rows != WHOLE:
        found = found.transpose(2, 3).flatten(3).flatten(1, 2)[:, :height]
    return found.reshape(shape)


def _scales(largest: Tensor, element: Element, to: Format) -> tuple[Tensor, Tensor | None]:
    """The scale of each block, and what its values are multiplied by, where that is not a division."""
    if to.scale is Scale.POWER:
        part, exponent = torch.frexp(largest / element.largest if to.up else largest)
        if to.up:
            exponent = torch.where(largest == math.inf, _POWERS[1], exponent - (part == 0.5).int())
        else:
            exponent = torch.where(largest == math.inf, _INFINITE, exponent) - math.frexp(element.largest)[1]
        exponent = torch.where(largest > 0, exponent, _POWERS[0])
        return torch.where(largest.isnan(), largest, torch.exp2(exponent.clamp(*_POWERS).float())), None
    if to.scale is Scale.TWICE:
        whole = largest.max() / (_E4M3 * element.largest)
        whole = torch.where(whole > 0, whole, 1.0)
        small = (largest / element.largest / whole).clamp(_SMALLEST, _E4M3)
        small = _to_element(small, Element(8, 3, -6, _E4M3), None)
        return small * whole, (1.0 / whole) / small
    span = element.largest if element.least is None else (element.largest - element.least) / 2
    scale = largest / span
    scale = torch.where(scale > 0, scale, 1.0)
    return scale, None if element.least is None else 1.0 / scale


def _to_element(values: Tensor, element: Element, noise: torch.Generator | None) -> Tensor:
    """Values, in float32, rounded to those that an element can be; ties go to the even one."""
    if not element.infinite:
        values = values.clamp(-element.largest if element.least is None else element.least, element.largest)
    step = (values.contiguous().view(torch.int32) & _EXPONENT).view(torch.float32)  # a power of two, below the value
    step = step.clamp_(2.0**element.lowest, 2.0**127).mul_(2.0**-element.digits)
    found = values / step
    if noise is None:
        found = found.round_()
    else:
        found = found.add_(torch.rand(found.shape, generator=noise, device=found.device)).floor_()
    found = found.mul_(step)
    if not element.infinite:  # noise may have led past the end
        return found if noise is None else found.clamp_(element.least or -element.largest, element.largest)
    return torch.where(found.abs() > element.largest, found * math.inf, found)


def _padded(values: Tensor, size: int) -> Tensor:
    """With zeros up to whole blocks."""
    left = -values.shape[-1] % size
    return torch.nn.functional.pad(values, (0, left)) if left else values


@functools.cache
def _hadamard(size: int, device: torch.device) -> Tensor:
    """An orthogonal matrix of plus and minus one, with random signs: 16 wide, as in NVFP4 training."""
    size = size & -size  # the largest power of two in it
    turn = torch.ones(1, 1)
    while len(turn) < min(size, 16):
        turn = torch.cat([torch.cat([turn, turn], 1), torch.cat([turn, -turn], 1)])
    signs = torch.randint(2, (len(turn), 1), generator=torch.Generator().manual_seed(len(turn))).mul_(2).sub_(1)
    return (turn * signs / math.sqrt(len(turn))).to(device)


def _turned(values: Tensor, turn: Tensor) -> Tensor:
    return (torch.unflatten(values, -1, (-1, len(turn))) @ turn).flatten(-2)
