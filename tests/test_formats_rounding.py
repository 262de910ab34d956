"""Formats: each number that a tensor has in a format is what gfloat and torchao make of it, to the bit."""

import math

import numpy as np
import pytest
import torch
from support import BF16, F16, F32, F64
from versions import since

from dtypeguard._tools.formats.rounding import rounded
from dtypeguard._tools.formats.table import FORMATS, format_of

gfloat = pytest.importorskip("gfloat")
formats = pytest.importorskip("gfloat.formats")

MX = {
    "mxfp8": "mxfp8_e4m3", "mxfp8:e5m2": "mxfp8_e5m2", "mxfp6": "mxfp6_e2m3", "mxfp6:e3m2": "mxfp6_e3m2",
    "mxfp4": "mxfp4_e2m1",
}  # fmt: skip
ROWS, LONG = 8192, 128  # a million numbers


def hostile(rows=ROWS, long=LONG, ordinary=False):
    """Numbers of all sizes, ties, zeros of both signs, blocks of zeros, of one outlier, and subnormal numbers."""
    torch.manual_seed(0)
    x = torch.randn(rows, long) * 2.0 ** torch.randint(-8, 1, (rows, long))
    x *= 2.0 ** (torch.randint(-3, 3, (rows, 1)) if ordinary else torch.randint(-30, 30, (rows, 1)))
    x[1::11] = 0.0
    x[2::11] = -0.0
    x[3::11] = 0.0
    x[3::11, 5] = 3.0 if ordinary else 3e30
    x[4::11] = torch.randint(-64, 64, x[4::11].shape) / 4.0
    x[5::11] = torch.randint(-15, 16, x[5::11].shape) * 0.25
    if not ordinary:
        x[6::11] *= 1e-42
    return x


def oracle(values, info):
    """Elements by gfloat, in float64."""
    return gfloat.round_ndarray(info, values, gfloat.RoundMode.TiesToEven, sat=True)


def by_blocks(x, size):
    return x.reshape(-1, size).double().numpy()


def microscaled(x, name):
    info = getattr(formats, f"format_info_{MX[name]}")
    blocks = by_blocks(x, 32)
    largest = np.abs(blocks).max(1, keepdims=True)
    with np.errstate(divide="ignore"):
        power = np.where(largest == 0, -127, np.clip(np.floor(np.log2(largest)) - info.etype.emax, -127, 127))
    return oracle(blocks / 2.0**power, info.etype) * 2.0**power


def nvidia(x):
    blocks = x.reshape(-1, 16).numpy()
    whole = np.float32(np.abs(blocks).max() / np.float32(448 * 6))
    largest = np.abs(blocks).max(1, keepdims=True)
    small = np.clip(largest / np.float32(6) / whole, np.float32(2**-6), np.float32(448))
    small = oracle(small, formats.format_info_ocp_e4m3).astype(np.float32)
    inverse = (np.float32(1) / whole) / small
    return oracle(blocks * inverse, formats.format_info_ocp_e2m1).astype(np.float32) * (small * whole)


def float8(x, blocks):
    """Blocks are an array whose last two axes share a scale."""
    blocks = x.reshape(blocks).numpy() if isinstance(blocks, tuple) else blocks
    scale = np.abs(blocks).max((-1, -2), keepdims=True) / np.float32(448)
    scale = np.where(scale > 0, scale, np.float32(1))
    return oracle(blocks / scale, formats.format_info_ocp_e4m3).astype(np.float32) * scale


def integers(x, bits, size):
    blocks = x.reshape(-1, size).numpy()
    scale = np.abs(blocks).max(1, keepdims=True) / np.float32((2**bits - 1) / 2)
    scale = np.where(scale > 0, scale, np.float32(1))
    inverse = np.float32(1) / scale
    return np.clip(np.rint(blocks * inverse), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) * scale


def significand(x, digits):
    part, power = np.frexp(x.double().numpy())
    return np.ldexp(np.rint(part * 2.0 ** (digits + 1)) / 2.0 ** (digits + 1), power)


ORACLES = {
    **{name: lambda x, name=name: microscaled(x, name) for name in MX},
    "nvfp4": nvidia,
    "fp8": lambda x: float8(x, (1, *x.shape)),
    "fp8:row": lambda x: float8(x, (-1, 1, LONG)),
    "fp8:block": lambda x: float8(x, (-1, 1, 128)),
    "int8": lambda x: integers(x, 8, LONG),
    "int4": lambda x: integers(x, 4, 128),
    "int4:32": lambda x: integers(x, 4, 32),
    "tf32": lambda x: significand(x, 10),
    "bf16": lambda x: x.to(BF16).double().numpy(),
    "fp16": lambda x: x.to(F16).double().numpy(),
}


def test_each_format_has_an_oracle():
    assert {*FORMATS} <= {*ORACLES}


@pytest.mark.parametrize("name", ORACLES)
def test_a_million_numbers_are_those_of_the_oracle(name):
    x = hostile(ordinary=name.startswith(("int", "tf32", "fp8", "nvfp4")))
    role = "weight" if name.startswith("int") else "gradient" if name.endswith("e5m2") else "activation"
    found = rounded(x, format_of(name), role=role).numpy().reshape(-1)
    expected = np.asarray(ORACLES[name](x)).reshape(-1)
    assert x.numel() >= 1_000_000
    assert int((found.astype(np.float64) != expected.astype(np.float64)).sum()) == 0
    assert int((np.signbit(found) != np.signbit(expected)).sum()) == 0


def test_weights_of_float8_share_a_scale_by_squares():
    w = hostile(256, 256, ordinary=True)
    squares = w.view(2, 128, 2, 128).transpose(1, 2).numpy()
    expected = float8(None, squares)
    found = rounded(w, format_of("fp8:block"), role="weight").view(2, 128, 2, 128).transpose(1, 2).numpy()
    assert (found == expected).all()


@since("torchao", "0.18", "it has the scales of a block in another place")
class TestTorchao:
    @pytest.mark.parametrize("up", [False, True], ids=["floor", "rceil"])
    @pytest.mark.parametrize("name", MX)
    def test_microscaling(self, name, up):
        from torchao.prototype.mx_formats.mx_tensor import MXTensor, ScaleCalculationMode

        kinds = {
            "mxfp8": torch.float8_e4m3fn, "mxfp8:e5m2": torch.float8_e5m2, "mxfp6": "fp6_e2m3",
            "mxfp6:e3m2": "fp6_e3m2", "mxfp4": torch.float4_e2m1fn_x2,
        }  # fmt: skip
        x = hostile(2048)
        x[6::11] = 1.5  # it reads its smallest scale, 2**-127, as another
        x[0, 3], x[7, 40], x[9, 70] = math.nan, math.inf, -math.inf
        mode = ScaleCalculationMode.RCEIL if up else ScaleCalculationMode.FLOOR
        theirs = MXTensor.to_mx(x, kinds[name], 32, mode).dequantize()
        ours = rounded(x, format_of(name + ":rceil" * up), role="gradient")
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours.nan_to_num(0), theirs.nan_to_num(0))

    @pytest.mark.parametrize("size", [1e-4, 1.0, 1e5])
    def test_nvfp4(self, size):
        from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

        x = hostile(2048, ordinary=True) * size
        theirs = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=per_tensor_amax_to_scale(x.abs().max())).dequantize()
        assert torch.equal(rounded(x, format_of("nvfp4")), theirs)

    @pytest.mark.parametrize(
        ("name", "role", "block"),
        [
            ("fp8", "weight", [256, 256]), ("fp8:row", "weight", [1, 256]), ("fp8:block", "weight", [128, 128]),
            ("fp8:block", "activation", [1, 128]),
        ],
    )  # fmt: skip
    def test_float8(self, name, role, block):
        from torchao.quantization import quant_primitives as q

        x = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
        scale = q._choose_scale_float8(x, block)
        theirs = q._dequantize_affine_float8(q._quantize_affine_float8(x, scale), scale)
        assert torch.equal(rounded(x, format_of(name), role=role), theirs)

    @pytest.mark.parametrize(("name", "block", "top"), [("int8", 256, 127), ("int4", 128, 7), ("int4:64", 64, 7)])
    def test_integers(self, name, block, top):
        from torchao.quantization import quant_primitives as q

        x = hostile(256, 256, ordinary=True)
        kind = q.MappingType.SYMMETRIC, (1, block), torch.int8, -top - 1, top
        scale, zero = q.choose_qparams_affine(x, *kind, zero_point_dtype=torch.int32)
        held = q.quantize_affine(x, (1, block), scale, zero, torch.int8, -top - 1, top)
        theirs = q.dequantize_affine(held, (1, block), scale, zero, torch.int8, -top - 1, top)
        assert torch.equal(rounded(x, format_of(name), role="weight"), theirs)


# ---------------------------------------------------------------- all formats


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [F32, BF16, F64], ids=str)
def test_a_tensor_keeps_its_dtype_shape_and_values(name, dtype):
    x = torch.randn(3, 5, 48, dtype=dtype)
    kept = x.clone()
    found = rounded(x, format_of(name), role="weight")
    assert (found.dtype, found.shape) == (dtype, x.shape)
    assert torch.equal(x, kept)
    assert float((found - x).abs().max()) < 1


@pytest.mark.parametrize("name", ["mxfp8", "mxfp6", "mxfp4", "tf32", "bf16", "fp16"])
def test_what_is_rounded_stays_what_it_is(name):
    once = rounded(hostile(64), format_of(name))
    assert torch.equal(rounded(once, format_of(name)), once)


@pytest.mark.parametrize("name", ["mxfp8", "mxfp6", "mxfp4", "nvfp4", "int4:32"])
@pytest.mark.parametrize("long", [1, 31, 33, 47, 100])
def test_an_odd_length_is_padded_with_zeros(name, long):
    x = torch.randn(4, long)
    padded = torch.nn.functional.pad(x, (0, 128 - long))
    assert torch.equal(
        rounded(x, format_of(name), role="weight"), rounded(padded, format_of(name), role="weight")[:, :long]
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_blocks_lie_along_the_axis(name, axis):
    x = torch.randn(64, 96, 32)
    turned = rounded(x.movedim(axis, -1).contiguous(), format_of(name)).movedim(-1, axis)
    assert torch.equal(rounded(x, format_of(name), axis), turned)


@pytest.mark.parametrize("name", ["mxfp4:rceil:sr", "nvfp4:sr", "fp8:sr", "mxfp8:rceil:sr"])
def test_stochastic_rounding_is_right_on_average(name):
    x = torch.randn(4, 128, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    found = torch.stack([rounded(x, format_of(name), generator=generator) for _ in range(2000)]).mean(0)
    once = rounded(x, format_of(name.removesuffix(":sr")))
    assert float((found - x).norm()) < 0.15 * float((once - x).norm())


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("fp8", 8), ("fp8:row", 8), ("mxfp8", 8.25), ("mxfp6", 6.25), ("mxfp4", 4.25), ("nvfp4", 4.5), ("int8", 8),
        ("int4", 4.125), ("int4:32", 4.5), ("bf16", 16), ("tf32", 19),
    ],
)  # fmt: skip
def test_bits_of_a_weight_have_their_share_of_the_scales(name, bits):
    assert format_of(name).bits == bits
