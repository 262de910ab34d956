"""The one table of every `torch.dtype`, and the rules that follow from it.

Everything else asks this module what a dtype is, which dtypes a
jaxtyping annotation names, and whether one dtype may be cast to another.
"""

import difflib
import enum
import functools
import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Literal

import torch
from typing_extensions import TypeAliasType

# Names in options, for type checkers. `dtype_of` takes them in any case, and "torch.bfloat16" too.
_Half = Literal["bfloat16", "float16", "bf16", "f16", "fp16", "half"]
_Low = Literal[_Half, "float32", "f32", "fp32", "float"]
_Float = Literal[_Low, "float64", "f64", "fp64", "double"]
_Any = Literal[
    _Float,
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "complex32", "complex64",
    "complex128", "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "c32", "c64", "c128",
    "bcomplex32", "uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7", "int1", "int2", "int3", "int4", "int5",
    "int6", "int7", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn_x2", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "qint8", "qint32", "quint8", "quint4x2",
    "quint2x4",
]  # fmt: skip
# With names of their own, so that `help()` of a function can be read.
HalfName = TypeAliasType("HalfName", _Half)
LowName = TypeAliasType("LowName", _Low)
FloatName = TypeAliasType("FloatName", _Float)
DtypeName = TypeAliasType("DtypeName", _Any)


class Kind(enum.IntEnum):
    """What a dtype's values are; the order is the order of promotion."""

    BOOL = 0
    INT = 1
    FLOAT = 2
    COMPLEX = 3
    STORAGE = 4  # checked, but no arithmetic: float8, float4, quantized, bits, sub-byte integers


class Casting(enum.IntEnum):
    """The casting ladder; each rung includes the ones before it."""

    SAFE = 0
    PRECISION = 1
    PROMOTE = 2
    UNSAFE = 3


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DtypeInfo:
    """One row: `digits` are bits of significand (or of an integer's value), `emax` the largest exponent."""

    name: str
    kind: Kind
    digits: int = 0
    emax: int = 0
    signed: bool = True


# name: (kind, digits, emax, signed). A name that the running torch lacks is left out.
_ROWS: dict[str, tuple[Kind, int, int, bool]] = {
    "bool": (Kind.BOOL, 1, 0, False),
    **{f"uint{n}": (Kind.INT, n, 0, False) for n in (8, 16, 32, 64)},
    **{f"int{n}": (Kind.INT, n - 1, 0, True) for n in (8, 16, 32, 64)},
    "bfloat16": (Kind.FLOAT, 8, 127, True),
    "float16": (Kind.FLOAT, 11, 15, True),
    "float32": (Kind.FLOAT, 24, 127, True),
    "float64": (Kind.FLOAT, 53, 1023, True),
    "bcomplex32": (Kind.COMPLEX, 8, 127, True),
    "complex32": (Kind.COMPLEX, 11, 15, True),
    "complex64": (Kind.COMPLEX, 24, 127, True),
    "complex128": (Kind.COMPLEX, 53, 1023, True),
    **{f"uint{n}": (Kind.STORAGE, n, 0, False) for n in range(1, 8)},
    **{f"int{n}": (Kind.STORAGE, n - 1, 0, True) for n in range(1, 8)},
    **dict.fromkeys(
        """float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2
        bits8 bits16 bits1x8 bits2x4 bits4x2 qint8 qint32 quint8 quint4x2 quint2x4""".split(),
        (Kind.STORAGE, 0, 0, True),
    ),
}

TABLE: dict[torch.dtype, DtypeInfo] = {
    getattr(torch, name): DtypeInfo(name, *row) for name, row in _ROWS.items() if hasattr(torch, name)
}
BY_NAME: dict[str, torch.dtype] = {info.name: dtype for dtype, info in TABLE.items()}
# As jaxtyping prints them: f32, bf16, i64, u8, c64; and as accelerate and DeepSpeed write them: fp16, fp32.
_SHORT: dict[str, torch.dtype] = {
    re.sub("^(bf|f|c|u|i)[a-z]*", r"\1", name): dtype
    for name, dtype in BY_NAME.items()
    if TABLE[dtype].kind in (Kind.INT, Kind.FLOAT, Kind.COMPLEX) and name != "bcomplex32"
}
_SHORT |= {f"fp{bits}": BY_NAME[f"float{bits}"] for bits in (16, 32, 64)}
FLOATING: frozenset[torch.dtype] = frozenset(d for d, i in TABLE.items() if i.kind is Kind.FLOAT)
# The dtypes that torch.autocast itself converts between; float64 is not among them.
# https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference
AUTOCAST: frozenset[torch.dtype] = frozenset({torch.float16, torch.bfloat16, torch.float32})
PIXELS = ", divided by 255 if these are pixels"  # of uint8 that becomes floats: a cast alone gives values up to 255
HALF: frozenset[torch.dtype] = frozenset({torch.float16, torch.bfloat16})
# The dtype in which a shadow computes what the program computes in this one.
WIDER: dict[torch.dtype, torch.dtype] = {
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float32: torch.float64,
    torch.complex32: torch.complex64,
    torch.complex64: torch.complex128,
}
HALF_ULP: dict[torch.dtype, float] = {dtype: torch.finfo(dtype).eps / 2 for dtype in (*WIDER, *WIDER.values())}
# What a norm's kernel takes besides its parameters' own dtype: measured for batch, layer, group, instance, RMS norm.
NARROWER: dict[torch.dtype, frozenset[torch.dtype]] = {torch.float32: AUTOCAST}


def name_of(dtype: Any) -> str:
    """The name by which jaxtyping compares a torch, NumPy or other array's dtype."""
    kind = getattr(dtype, "type", None)
    if kind is not None and hasattr(kind, "__name__"):
        structured = kind.__name__ == "void" and getattr(dtype, "names", None) is not None
        return str(dtype) if structured else str(kind.__name__)
    return dtype if isinstance(dtype, str) else repr(dtype).rsplit(".", 1)[-1]


def dtype_title(dtype: torch.dtype | None, nothing: str = "as given") -> str:
    """The name of a dtype, or what is said where there is none."""
    return nothing if dtype is None else name_of(dtype)


def dtype_of(
    value: torch.dtype | str, option: str, nothing: str = "", legal: Container[torch.dtype] | None = None
) -> torch.dtype:
    """The dtype that an option names: `torch.bfloat16`, "bfloat16", "bf16", "torch.bfloat16" or "half".

    Args:
        value: what was given.
        option: its name.
        nothing: how no dtype is written, where that is legal.
        legal: the dtypes of which one may be meant by a text that names none; default: all.

    Raises:
        ValueError: for a text that names none.
        TypeError: for what is neither.
    """
    if isinstance(value, torch.dtype):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{option}={value!r} ({type(value).__name__}) is no dtype: write torch.bfloat16 or 'bfloat16'")
    name = value.strip().lower().removeprefix("torch.")
    found = BY_NAME.get(name) or _SHORT.get(name) or getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        if "," in name:
            raise ValueError(f"{option}={value!r} is several dtypes: pass one")
        every = {**BY_NAME, **_SHORT}
        known = {one: repr(name_of(dtype)) for one, dtype in every.items()}
        known |= {"none": nothing} if nothing else {}
        family = [one for one in known if one.startswith(f"{name.replace('fp8', 'float8')}_")]
        near = family or difflib.get_close_matches(name, known, 1)
        near = [one for one in near if legal is None or one not in every or every[one] in legal]
        meant = (
            f"did you mean {', '.join(known[one] for one in near)}?"
            if near
            else "write torch.bfloat16, 'bfloat16' or 'bf16'"
        )
        raise ValueError(f"{option}={value!r} is no dtype: {meant}")
    return found


def names_accept(names: tuple[str | re.Pattern[str], ...] | None, name: str) -> bool:
    """Whether a dtype called `name` is among an annotation's `names` (strings or regexes; None is any)."""
    return names is None or any(n == name if isinstance(n, str) else n.match(name) is not None for n in names)


@functools.cache
def dtypes_named(names: tuple[str | re.Pattern[str], ...] | None) -> frozenset[torch.dtype] | None:
    """The torch dtypes that `names` accept; None stands for all of them."""
    return None if names is None else frozenset(d for n, d in BY_NAME.items() if names_accept(names, n))


def survives(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether every value of `source` is a value of `target` of the same kind."""
    a, b = TABLE[source], TABLE[target]
    if source is target:
        return True
    same_kind = a.kind is b.kind and a.kind is not Kind.STORAGE
    return same_kind and a.digits <= b.digits and a.emax <= b.emax and (b.signed or not a.signed)


def may_cast(source: torch.dtype, target: torch.dtype, casting: Casting) -> bool:
    """Whether the ladder's rung `casting` lets `source` become `target`.

    >>> import torch
    >>> may_cast(torch.float64, torch.float32, Casting.PRECISION)
    True
    >>> may_cast(torch.int64, torch.int32, Casting.PROMOTE)
    False
    """
    if casting is Casting.UNSAFE or survives(source, target):
        return True
    a, b = TABLE[source].kind, TABLE[target].kind
    if Kind.STORAGE in (a, b) or casting is Casting.SAFE:
        return False
    if a is b:
        return a in (Kind.FLOAT, Kind.COMPLEX)
    return casting is Casting.PROMOTE and a < b


def lost(source: torch.dtype, target: torch.dtype) -> tuple[int, int, int, bool]:
    """What a cast loses: its rung of the ladder, bits of significand, range as powers of 2, and the sign."""
    a, b = TABLE[source], TABLE[target]
    digits, wide = a.digits - b.digits, (a.emax or a.digits) - (b.emax or b.digits)
    return lowest_rung(source, target), max(digits, 0), max(wide, 0), a.signed and not b.signed


_LADDER = tuple(Casting)  # torch < 2.11: it traces no iteration over an enum's class; goes with that floor


def lowest_rung(source: torch.dtype, target: torch.dtype) -> Casting:
    """The first rung of the ladder that allows the cast; messages name it."""
    return next(rung for rung in _LADDER if may_cast(source, target, rung))
