"""`testing.tensors`: what it draws keeps its annotation, reaches what there is, shrinks, and leaves nothing behind."""

import abc
import collections
import contextlib
import dataclasses
import functools
import math
import os
import pickle
import random
import subprocess
import sys
import time
import types
import typing
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict, TypeVar, Union

import jaxtyping
import numpy as np
import pytest
import torch
from beartype.door import is_bearable
from hypothesis import Phase, find, given, seed, settings
from hypothesis import strategies as st
from jaxtyping import (
    AbstractArray,
    BFloat16,
    Bool,
    Complex,
    Complex64,
    Complex128,
    Float,
    Float8e4m3fn,
    Float16,
    Float32,
    Int,
    Int8,
    Int32,
    Int64,
    Key,
    Num,
    Shaped,
    UInt8,
    UInt64,
    jaxtyped,
)
from strategies import Half, Pattern, drawn, holds
from torch import Tensor, nn
from typing_extensions import TypeAliasType

import dtypeguard
from dtypeguard import AnnotationError
from dtypeguard.testing import tensors

MANY = pytest.mark.slow
DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
FLOATING = [dtype for dtype in DTYPES if dtype.is_floating_point and "float4" not in str(dtype)]
QUANTIZED = [dtype for dtype in DTYPES if str(dtype).removeprefix("torch.").lstrip("qu").startswith("int") and "q" in
             str(dtype)]  # fmt: skip
LAYOUTS = ["contiguous", "transposed", "strided", "offset", "expanded", "channels_last"]

X = Float32[Tensor, "n"]
Y = Float32[Tensor, "a b"]
Vector = TypeVar("Vector", bound=Float32[Tensor, "n"])
Either = TypeVar("Either", Float32[Tensor, "n"], Int64[Tensor, "n"])
Array = TypeVar("Array", Tensor, np.ndarray)
Ids = NewType("Ids", Int64[Tensor, "n"])
Alias = TypeAliasType("Alias", list[Float32[Tensor, "n"]])


class Plain(Tensor):
    pass


class Pair(NamedTuple):
    left: Float32[Tensor, "n"]
    right: Int64[Tensor, "n 2"]
    name: str = ""


@dataclasses.dataclass
class Batch:
    image: Float32[Tensor, "b c h w"]
    label: Int64[Tensor, "b"]
    mask: Bool[Tensor, "b"] | None = None
    name: str = "train"
    tags: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    x: Float32[Tensor, "n"]
    y: Float32[Tensor, "n"]
    size: int = dataclasses.field(init=False, default=0)


@dataclasses.dataclass
class Late:
    x: Float32[Tensor, "n"]
    weight: dataclasses.InitVar[Float32[Tensor, "n"]]
    count: dataclasses.InitVar[int]

    def __post_init__(self, weight, count):
        self.x = self.x + weight


@dataclasses.dataclass
class Setup:
    x: Float32[Tensor, "n"]
    dtype: torch.dtype
    device: torch.device
    kind: Literal["train", "eval"]
    anything: Any


class Source(abc.ABC):
    @abc.abstractmethod
    def read(self): ...


@dataclasses.dataclass
class Wired:
    x: Float32[Tensor, "n"]
    source: Source | None = None


class Features(TypedDict):
    ids: Int64[Tensor, "b t"]
    mask: NotRequired[Bool[Tensor, "b t"]]
    name: NotRequired[str]


class Nested(TypedDict):
    x: Float32[Tensor, "n"]
    left: NotRequired["Nested"]
    right: NotRequired["Nested"]
    other: NotRequired["Nested"]


@dataclasses.dataclass
class Tree:
    x: Float32[Tensor, "n"]
    children: list["Tree"]


@dataclasses.dataclass
class Leaf:
    x: Float32[Tensor, "n"]


@dataclasses.dataclass
class Fork:
    left: "Fork | Leaf"
    right: "Fork | Leaf"


@dataclasses.dataclass
class Endless:
    x: Float32[Tensor, "n"]
    rest: "Endless"


@dataclasses.dataclass(init=False)
class OwnInit:
    x: Float32[Tensor, "n"]

    def __init__(self, other):
        self.x = other


TOKENS = [
    "", "n", "a b", "a a", "b c h w", "...", "*rest", "*_", "_*", "a ... b", "*a b", "b *b", "_", "_a _b", "3", "0",
    "1_0", "+3", "03", "dim=4", "#dim=4", "d=#b", "d=*b", "d=_", "d=", "a b d=a+b", "a<=3", "{n}=4", "a b a==b", "*",
    "#*b", "*#b c", "#a", "#a #a", "#a #b a", "#3 3", "#1", "3.0", "True", "class True", "é", "a b a+b",
    "a b min(a,b)", "n 2*n n//2", "a b max(a,b)-a", "n n+1 n-1", "#a+1 a", "a a%2", "a abs(a-3)", "h w (h/16)*(w/16)",
]  # fmt: skip
FAMILIES = (
    "Float32 Float Int Shaped Num Bool Float16 BFloat16 Float64 Int64 Int32 Int16 Int8 Int4 Int2 UInt UInt8 UInt16 "
    "UInt32 UInt64 UInt4 UInt2 Integer Complex Complex64 Complex128 Inexact Real Float8e4m3fn Float8e5m2 Float8e4m3fnuz"
).split()
ARRAYS = {
    f"{family} {token!r}": getattr(jaxtyping, family)[Tensor, token]
    for token, family in zip(TOKENS, FAMILIES * 2, strict=False)
}
OTHERS = {
    "custom dtypes": Half[Tensor, "a b"],
    "regex": Pattern[Tensor, "a b"],
    "nested": Float[Float32[Tensor, "a b"], "n"],
    "numpy": Num[np.ndarray, "a #b"],
    "numpy complex": Complex[np.ndarray, "n"],
    "Parameter": Float[nn.Parameter, "a b"],
    "Buffer": Float32[nn.Buffer, "n"],
    "subclass": Shaped[Plain, "a *b"],
    "Any": Float[Any, "a b"],
    "Tensor or ndarray": Float32[Tensor | np.ndarray, "n"],
    "array TypeVar": Float32[Array, "n"],
    "plain Tensor": Tensor,
    "LongTensor": torch.LongTensor,
    "Optional": Optional[X],  # noqa: UP045
    "dtype or dtype": Float32[Tensor, "n"] | Int64[Tensor, "n"],
    "rank or rank": Float[Tensor, "a"] | Float[Tensor, "a b"] | None,
    "tensor or number": Float32[Tensor, "n"] | float,
    "unions that share axes": tuple[Y | Float32[Tensor, "b a"], Float32[Tensor, "a"], Float32[Tensor, "b"]],
    "union before its expression": tuple[Float32[Tensor, "n"] | None, Float32[Tensor, "n+1"]],
    "union of far sizes": Float32[Tensor, "n n-300"] | Int64[Tensor, "n n-300"],
    "list": list[X],
    "Sequence": Sequence[X],
    "tuple": tuple[X, int, Int64[Tensor, "n n"], str | None],
    "Mapping": Mapping[str, X],
    "defaultdict": defaultdict[str, X],
    "NamedTuple": Pair,
    "dataclass": Batch,
    "frozen dataclass": Frozen,
    "dataclass with InitVar": Late,
    "dataclass with device and dtype": Setup,
    "TypedDict": Features,
    "recursive TypedDict": Nested,
    "recursive dataclass": Tree,
    "recursion in a union": Fork | Leaf,
    "TypeVar with a bound": Vector,
    "TypeVar with constraints": Either,
    "NewType": Ids,
    "Annotated": Annotated[X, "of samples"],
    "alias": Alias,
    "Final": typing.Final[X],
    "variadics that broadcast": tuple[Float32[Tensor, "*#a"], Float32[Tensor, "*#a"], Float32[Tensor, "*a"]],
}  # fmt: skip


ANNOTATIONS = ARRAYS | OTHERS


class _AllReachedError(Exception):
    pass


def missing(goals, strategy, within):
    """Those of some goals, {name: condition}, that none of so many values reaches; it stops when all are."""
    left = dict(goals)

    @seed(0)
    @settings(max_examples=within, database=None, deadline=None, phases=[Phase.generate])
    @given(strategy)
    def look(value):
        for name in [name for name, reaches in left.items() if reaches(value)]:
            del left[name]
        if not left:
            raise _AllReachedError

    with contextlib.suppress(_AllReachedError):
        look()
    return set(left)


def accepts(hint, value):
    """Whether jaxtyping accepts, in one scope, every array of a value as its hint wants it."""

    def scoped():
        return _fits(hint, value)

    return jaxtyped(scoped, typechecker=None)()


def _fits(hint, value):
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is object:
        return True
    if isinstance(hint, type) and issubclass(hint, AbstractArray | Tensor):
        return isinstance(value, hint)
    if type(hint) is type(torch.LongTensor):
        return isinstance(value, hint)
    if isinstance(hint, TypeVar):
        return any(_fits(bound, value) for bound in hint.__constraints__ or (hint.__bound__,))
    if isinstance(hint, NewType):
        return _fits(hint.__supertype__, value)
    if isinstance(hint, TypeAliasType):
        return _fits(hint.__value__, value)
    if origin in (Annotated, typing.Final, NotRequired):
        return _fits(args[0], value)
    if origin is Union or isinstance(hint, types.UnionType):
        return any(_fits(option, value) for option in args)
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        return type(value) is tuple and len(value) == len(args) and all(map(_fits, args, value))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, origin) and all(_fits(args[0], k) and _fits(args[1], v) for k, v in value.items())
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return isinstance(value, origin) and all(_fits(args[0], item) for item in value)
    if typing.is_typeddict(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        known = all(key in hints and _fits(hints[key], item) for key, item in value.items())
        return type(value) is dict and hint.__required_keys__ <= set(value) and known
    if dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"):
        hints = typing.get_type_hints(hint, include_extras=True)
        return type(value) is hint and all(
            _fits(h, getattr(value, name)) for name, h in hints.items() if not isinstance(h, dataclasses.InitVar)
        )
    return is_bearable(value, hint)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (X, torch.ones(2, 2)),
        (X, torch.ones(2, dtype=torch.float64)),
        (list[X], [torch.ones(2), torch.ones(3)]),
        (dict[str, X], {"a": torch.ones(2), "b": torch.ones(3)}),
        (tuple[X, int, Int64[Tensor, "n n"], str | None], (torch.ones(2), 1, torch.ones(2, 3).long(), None)),
        (Batch, Batch(torch.ones(2, 3, 4, 4), torch.ones(3).long())),
        (Features, {"mask": torch.ones(2, 2).bool()}),
        (X | None, 1),
    ],
)
def test_the_judge_of_these_tests_refuses_what_is_wrong(hint, value):
    assert not accepts(hint, value)


def test_an_annotation_may_be_a_string_that_names_what_its_caller_sees():
    Local = Float32[Tensor, "n 3"]  # noqa: F841
    for text in ("Local", 'list["Local"] | None'):
        for value in drawn(tensors(text), 20):
            for tensor in value if isinstance(value, list) else [value]:
                assert tensor is None or (tensor.dtype is torch.float32 and tensor.shape[1:] == (3,))


# ---------------------------------------------------------------- what is reached


def _each(dtypes):
    return {dtype: lambda value, dtype=dtype: value.dtype is dtype for dtype in dtypes}


@pytest.mark.parametrize(
    "family", ["Complex", "Float", "UInt", *(pytest.param(name, marks=MANY) for name in ("Int", "Num", "Shaped"))]
)
def test_a_family_reaches_all_of_its_members(family):
    annotation = getattr(jaxtyping, family)[Tensor, ""]
    members = [d for d in DTYPES if family == "Shaped" or str(d).removeprefix("torch.") in annotation.dtypes]
    assert len(members) > 1
    assert missing(_each(members), tensors(annotation), within=10_000) == set()


def test_an_annotation_of_anything_reaches_first_what_torch_computes_in():
    usual = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool]
    usual += [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
    reached = collections.Counter(x.dtype in usual for x in drawn(tensors(Shaped[Tensor, ""]), 1000))
    assert reached[True] > reached[False]


LIES = {
    "contiguous": lambda x: x.is_contiguous() and x.storage_offset() == 0,
    "transposed": lambda x: list(x.stride()) == sorted(x.stride()) and not x.is_contiguous(),
    "strided": lambda x: x.stride()[-1] == 2,
    "offset": lambda x: x.storage_offset() == 1,
    "expanded": lambda x: 0 in x.stride(),
    "channels_last": lambda x: x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous(),
}
LARGE_ENOUGH = {"b": 2, "c": 3, "h": 4, "w": 5}


def test_every_layout_is_reached():
    assert missing(LIES, tensors(Shaped[Tensor, "b c h w"], axes=LARGE_ENOUGH), within=500) == set()


def _kinds(dtype):
    """The kinds of edge values that a floating dtype has, as conditions of float64 values."""
    info = torch.finfo(dtype)
    kinds = {
        "nan": lambda x: x.isnan(),
        "infinity": lambda x: x == math.inf,
        "minus infinity": lambda x: x == -math.inf,
        "zero": lambda x: (x == 0) & ~x.signbit(),
        "minus zero": lambda x: (x == 0) & x.signbit(),
        "one": lambda x: x == 1,
        "max": lambda x: x == info.max,
        "min": lambda x: x == info.min,
        "tiny": lambda x: x == info.tiny,
        "eps": lambda x: x == info.eps,
        "next to one": lambda x: x == 1 + info.eps,
        "subnormal": lambda x: (x > 0) & (x < info.tiny),
        "negative subnormal": lambda x: (x < 0) & (x > -info.tiny),
        "fraction": lambda x: x.isfinite() & (x != x.round()),
        "usual": lambda x: (x.abs() > 1) & (x.abs() < 10),
    }
    if dtype.itemsize == 1:
        there = torch.arange(256).to(torch.uint8).view(dtype).to(torch.float64)
        kinds = {name: kind for name, kind in kinds.items() if kind(there).any()}
    return kinds


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e5m2, *(d for d in FLOATING if d.itemsize != 2)], ids=str
)
def test_every_kind_of_number_is_reached_in_every_floating_dtype(dtype):
    goals = {name: lambda x, kind=kind: kind(x.to(torch.float64)).any() for name, kind in _kinds(dtype).items()}
    assert "nan" in goals
    assert missing(goals, tensors(Shaped[Tensor, "4"], dtype=dtype, layout="contiguous"), within=6000) == set()


@pytest.mark.thin(3)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex32, torch.complex128], ids=str)
def test_both_parts_of_complex_numbers_reach_infinity_nan_and_the_edges(dtype):
    values = (math.nan, math.inf, -math.inf, torch.finfo(dtype).max, 0, 1)

    def reaches(x, value, part):
        numbers = torch.view_as_real(x.to(torch.complex128))[..., part]
        return (numbers.isnan() if value != value else numbers == value).any()

    goals = {(value, part): functools.partial(reaches, value=value, part=part) for value in values for part in (0, 1)}
    assert missing(goals, tensors(Shaped[Tensor, "4"], dtype=dtype, layout="contiguous"), within=6000) == set()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.uint64], ids=str)
def test_the_extremes_of_integers_are_reached(dtype):
    info = torch.iinfo(dtype)
    goals = {n: lambda x, n=n: n in x.tolist() for n in {info.min, info.max, 0, 1, 2, max(info.min, -1)}}
    assert missing(goals, tensors(Shaped[Tensor, "4"], dtype=dtype, layout="contiguous"), within=6000) == set()


@pytest.mark.parametrize("width", [1, 4, 7])
def test_integers_of_few_bits_stay_in_their_bits(width):
    values = drawn(tensors(Shaped[Tensor, "4"], dtype=getattr(torch, f"uint{width}"), layout="contiguous"), 40)
    stored = torch.cat([value.view(torch.uint8) for value in values])
    assert {0, 2**width - 1} <= set(stored.tolist())
    assert stored.max() < 2**width


def test_shapes_are_scalars_empty_of_one_element_and_of_any_rank():
    goals = {shape: lambda x, shape=shape: x.shape == shape for shape in ((), (0,), (1,), (1, 1))}
    goals |= {f"rank {n}": lambda x, n=n: x.dim() == n for n in range(4)}
    goals["empty matrix"] = lambda x: 0 in x.shape and x.dim() > 1
    assert missing(goals, tensors(Float32[Tensor, "..."]), within=1000) == set()
    values = drawn(tensors(Float32[Tensor, "b c"]), 100)
    assert sum(x.numel() > 1 and x.unique().numel() > 1 for x in values) > 30


def test_broadcast_axes_are_of_size_one_and_full():
    pairs = drawn(tensors(tuple[Float32[Tensor, "#b c"], Float32[Tensor, "b #c"]], axes={"b": 4, "c": 5}), 100)
    assert {x.shape[0] for x, _ in pairs} == {1, 4}
    assert {y.shape[1] for _, y in pairs} == {1, 5}
    runs = tensors(tuple[Float32[Tensor, "*#b"], Float32[Tensor, "*#b"]], axes={"*b": (2, 3)})
    goals = {s: lambda pair, s=s: pair[0].shape == s for s in ((), (1, 1), (2, 3), (1, 3), (2, 1), (3,), (1,))}
    assert missing(goals, runs, within=1000) == set()


@pytest.mark.parametrize(
    ("dims", "free", "most"),
    [
        ("n 2*n", 1, 200),
        ("n n n*n", 1, 5000),
        ("a b c a*b*c", 3, 300_000),
        ("a b c d a+b+c+d", 4, 100_000),
        ("#a b a+b", 2, 1000),
        ("h w (h/16)*(w/16)", 2, 1 << 24),  # small ones fit if they are empty, so larger ones are tried
        ("n n-1000", 1, 24 * 1024),
    ],
)
def test_axes_that_expressions_use_take_several_sizes_no_larger_than_needed(dims, free, most):
    values = drawn(tensors(Float32[Tensor, dims]), 50)
    for axis in range(free):
        assert len({x.shape[axis] for x in values}) >= (1 if most == 24 * 1024 else 4)
    assert max(x.numel() for x in values) <= most
    assert sum(x.numel() > 0 for x in values) > 8  # half of the sizes of `n n-1000` give none


def test_gradients_are_required_where_they_can_be_and_as_asked():
    for x in drawn(tensors(Num[Tensor, "n"], requires_grad=True), 50):
        assert x.requires_grad == (x.is_floating_point() or x.is_complex())
        assert x.is_leaf
    asked = {
        (True, False): tensors(X, requires_grad=st.booleans()),
        (False,): tensors(X),
        (True,): tensors(Float32[nn.Parameter, "n"]),
    }
    for wanted, strategy in asked.items():
        assert {x.requires_grad for x in drawn(strategy, 50)} == set(wanted)
    assert {x.requires_grad for x in drawn(tensors(Float32[nn.Parameter, "n"], requires_grad=False), 50)} == {False}


def test_containers_are_empty_and_full_and_every_option_is_taken():
    assert {len(value) for value in drawn(tensors(list[X]), 40)} == {0, 1, 2, 3}
    union = Float32[Tensor, "n"] | Int64[Tensor, "n"] | Bool[Tensor, ""] | None
    assert {type(x) if x is None else x.dtype for x in drawn(tensors(union), 60)} == {
        type(None), torch.float32, torch.int64, torch.bool,
    }  # fmt: skip
    keys = [{"ids"}, {"ids", "mask"}, {"ids", "name"}, {"ids", "mask", "name"}]
    assert missing({str(k): lambda v, k=k: set(v) == k for k in keys}, tensors(Features), within=300) == set()
    assert {type(value) for value in drawn(tensors(Fork | Leaf), 50)} == {Fork, Leaf}
    assert {value.mask is None for value in drawn(tensors(Batch), 50)} == {True, False}
    assert {value.source for value in drawn(tensors(Wired), 20)} == {None}  # a class that nobody can make


def test_recursion_goes_deeper_than_once_and_ends():
    def depth(tree):
        return 1 + max(map(depth, tree.children), default=0)

    assert missing({n: lambda tree, n=n: depth(tree) == n for n in (1, 2, 3)}, tensors(Tree), within=300) == set()
    assert max(map(depth, drawn(tensors(Tree), 30))) < 12


def test_options_that_do_not_reach_into_a_container_are_refused():
    with pytest.raises(AnnotationError, match="finite= does not reach into Iterator"):
        tensors(Iterator[X], finite=True)
    with pytest.raises(AnnotationError, match="would not agree with the others; use list or tuple"):
        tensors(tuple[X, Iterator[X]])
    assert drawn(tensors(Iterator[X], device="cpu"), 5)


# ---------------------------------------------------------------- shrinking


def smallest(annotation, condition, **options):
    return find(
        tensors(annotation, **options),
        condition,
        settings=settings(max_examples=20_000, database=None, deadline=None, phases=[Phase.generate, Phase.shrink]),
        random=random.Random(0),
    )


NAN, INF = math.nan, math.inf
F32, F64, I64 = torch.float32, torch.float64, torch.int64
SMALLEST = [
    ("anything", Float[Tensor, "..."], lambda x: True, F32, 0.0),
    ("any integers", Int[Tensor, "a b"], lambda x: True, I64, [[0]]),
    ("NaN", Float[Tensor, "a b"], lambda x: x.double().isnan().any(), F32, [[NAN]]),
    ("infinity", Float[Tensor, "n"], lambda x: x.double().isinf().any(), F32, [INF]),
    ("minus zero", Float32[Tensor, "n"], lambda x: ((x == 0) & x.signbit()).any(), F32, [-0.0]),
    ("large integer", Int64[Tensor, "n"], lambda x: (x > 1000).any(), I64, [1001]),
    ("imaginary", Complex64[Tensor, "n"], lambda x: (x.imag != 0).any(), torch.complex64, [1j]),
    ("bfloat16", Float[Tensor, "a b"], lambda x: x.dtype is torch.bfloat16, torch.bfloat16, [[0.0]]),
    ("float8", Float[Tensor, "n"], lambda x: x.itemsize == 1, None, [0.0]),
    ("empty", Float[Tensor, "..."], lambda x: x.numel() == 0, F32, []),
    ("empty second axis", Float[Tensor, "a b"], lambda x: x.shape[1] == 0, F32, [[]]),
    ("rank 2", Float[Tensor, "..."], lambda x: x.dim() == 2, F32, [[0.0]]),
    ("broadcast", Float32[Tensor, "#a #a"], lambda x: x.shape[0] > x.shape[1], F32, [[0.0]] * 2),
    ("two values", Float32[Tensor, "n"], lambda x: len(x) > 1 and x[0] != x[1] and x.isfinite().all(), F32, None),
    ("Int64 option", Float32[Tensor, "n"] | Int64[Tensor, "n"], lambda x: x.dtype is I64, I64, [0]),
]  # fmt: skip


@pytest.mark.thin(5)
@pytest.mark.parametrize(("annotation", "condition", "dtype", "values"), [case[1:] for case in SMALLEST],
                         ids=[case[0] for case in SMALLEST])  # fmt: skip
def test_a_failure_shrinks_to_the_smallest_shape_the_simplest_numbers_and_the_first_dtype(
    annotation, condition, dtype, values
):
    found = smallest(annotation, condition)
    assert dtype is None or found.dtype is dtype
    if values is None:
        assert sorted(found.abs().tolist()) == [0.0, 1.0]
        return
    shown = found.to(torch.complex128 if found.is_complex() else torch.float64)
    wanted = torch.tensor(values, dtype=shown.dtype)
    assert shown.shape == wanted.shape
    assert torch.equal(shown.nan_to_num(nan=7), wanted.nan_to_num(nan=7))
    assert found.is_complex() or torch.equal(shown.signbit() & ~shown.isnan(), wanted.signbit() & ~wanted.isnan())


def test_containers_shrink_to_few_and_simple_values():
    assert [x.tolist() for x in smallest(list[X], lambda value: len(value) > 1)] == [[0.0], [0.0]]
    batch = smallest(Batch, lambda value: value.label.numel() > 0)
    assert (batch.image.shape, batch.label.tolist()) == ((1, 1, 1, 1), [0])
    tree = smallest(Tree, lambda value: len(value.children) > 0)
    assert (len(tree.children), tree.children[0].children) == (1, [])


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("dims", "axes", "shapes"),
    [
        ("b 3", {"b": np.int64(2)}, {(2, 3)}),
        ("b b", {"b": 4}, {(4, 4)}),
        ("*rest 3", {"*rest": (2, 2)}, {(2, 2, 3)}),
        ("*rest 3", {"rest": [2, 2]}, {(2, 2, 3)}),
        ("b *b", {"b": 3, "*b": (2, 2)}, {(3, 2, 2)}),
        ("#b 1", {"b": 4}, {(4, 1), (1, 1)}),
        ("b", {"b": st.sampled_from([1, 100])}, {(1,), (100,)}),
        ("*rest", {"*rest": st.sampled_from([(), (2, 3)])}, {(), (2, 3)}),
        ("*#rest", {"rest": (2,)}, {(2,), (1,), ()}),
        ("n n-3000", {"n": 3002}, {(3002, 2)}),
        ("n n-3", {"n": st.integers(4, 5)}, {(4, 1), (5, 2)}),
        ("a b a-b", {"a": 7, "b": st.just(5)}, {(7, 5, 2)}),
        ("True class", {"True": 2, "class": 3}, {(2, 3)}),
    ],
)
def test_axes_are_what_was_asked(dims, axes, shapes):
    assert {tuple(x.shape) for x in drawn(tensors(Float32[Tensor, dims], axes=axes), 30)} == shapes


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"axes": {"d": 2}}, ValueError, r"no axis 'd'.*b, \*rest"),
        ({"axes": {"*b": (2,)}}, ValueError, "no axis '\\*b'"),
        ({"axes": {1: 2}}, ValueError, "no axis 1"),
        ({"axes": {"b": -1}}, ValueError, "b=-1 is not a size"),
        ({"axes": {"b": 2.0}}, ValueError, "b=2.0 is not a size"),
        ({"axes": {"b": (2,)}}, ValueError, r"b=\(2,\) is not a size"),
        ({"axes": {"*rest": 2}}, ValueError, "rest=2 is not a tuple of sizes"),
        ({"axes": {"*rest": (2, -1)}}, ValueError, "not a tuple of sizes"),
        ({"axes": [("b", 3)]}, TypeError, "axes="),
        ({"axes": {"b": st.just("x")}}, ValueError, "b='x' is not a size"),
        ({"layout": "bad"}, ValueError, "layout='bad'.*'contiguous', 'transposed'"),
        ({"layout": "contigous"}, ValueError, r"layout='contigous' is not a layout \(did you mean 'contiguous'\?\)"),
        ({"layout": 3}, TypeError, "layout=3"),
        ({"layout": st.just("bad")}, ValueError, "layout='bad'"),
        ({"device": "bad"}, ValueError, "device='bad'"),
        ({"device": 3.5}, TypeError, "device=3.5"),
        ({"requires_grad": "yes"}, TypeError, "requires_grad='yes'"),
        ({"dtype": "float33"}, ValueError, "dtype=.float33. is no dtype"),
        ({"dtype": [torch.float32, 3]}, TypeError, "dtype takes a dtype .* not 3"),
        ({"elements": lambda: 3}, TypeError, r"elements=.*st.floats"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_say_so(options, error, says):
    with pytest.raises(error, match=says):
        drawn(tensors(Float32[Tensor, "b *rest"], **options), 10)


def test_options_that_leave_nothing_are_errors_of_the_annotation():
    for annotation, options in [
        (X, {"dtype": []}),
        (tuple[X, Int64[Tensor, "n"]], {"dtype": torch.int64}),
        (Float32[Tensor, "n n-3"], {"axes": {"n": 2}}),
        (Float32[Tensor, "b c"], {"axes": {"b": 2**40, "c": 2**40}}),
    ]:
        with pytest.raises(AnnotationError, match=r"^tensors: no value"):
            tensors(annotation, **options)


@pytest.mark.parametrize(
    ("annotation", "dtypes", "reached"),
    [
        (Float[Tensor, ""], torch.bfloat16, {torch.bfloat16}),
        (Float[Tensor, ""], iter([torch.float64, torch.int64]), {torch.float64}),
        (Float32[Tensor, ""] | Int64[Tensor, ""], torch.int64, {torch.int64}),
        (Shaped[Tensor, ""], (torch.uint1, torch.bits16), {torch.uint1, torch.bits16}),
    ],
)
def test_dtypes_narrow_those_of_the_annotation(annotation, dtypes, reached):
    assert {x.dtype for x in drawn(tensors(annotation, dtype=dtypes), 40)} == reached


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_layout_is_what_was_asked(layout, device):
    asked = tensors(Float[Tensor, "b c h w"], axes=LARGE_ENOUGH, layout=st.just(layout), device=device)
    for x in drawn(asked, 15):
        assert x.device.type == device
        assert LIES[layout](x) or (device == "meta" and layout == "expanded" and 0 in x.stride())
    assert {x.stride() for x in drawn(tensors(Float32[Tensor, ""], layout=layout), 3)} == {()}
    assert all(map(LIES[layout], drawn(tensors(Float32[Tensor, "2 3 512 512"], layout=layout), 3)))


@pytest.mark.thin(4)
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype not in QUANTIZED], ids=str)
def test_every_dtype_but_the_quantized_is_drawn_on_meta_in_every_layout(dtype):
    asked = tensors(Shaped[Tensor, "b c h w"], axes=LARGE_ENOUGH, dtype=dtype, device="meta")
    for x in drawn(asked, 8):
        assert (x.dtype, x.device.type, tuple(x.shape)) == (dtype, "meta", (2, 3, 4, 5))


def test_a_device_may_be_a_device_or_a_strategy_and_is_torch_s_default_otherwise():
    both = drawn(tensors(X, device=st.sampled_from(["cpu", torch.device("meta")])), 50)
    assert {x.device.type for x in both} == {"cpu", "meta"}
    with torch.device("meta"):
        strategy = tensors(Shaped[Tensor, "n"])
        assert {x.device.type for x in drawn(strategy, 100)} == {"meta"}
        assert {x.device.type for x in drawn(tensors(X, device="cpu"), 10)} == {"cpu"}
    assert {x.device.type for x in drawn(strategy, 10)} == {"cpu"}


HELD = [
    (Float32[Tensor, "3"], st.floats(-1, 1, width=32), lambda x: x.abs().max() <= 1),
    (Float[Tensor, "3"], st.floats(0.25, 1), lambda x: ((x.double() >= 0.25) & (x.double() <= 1)).all()),
    (Float8e4m3fn[Tensor, "3"], st.sampled_from([448.0, -1]), lambda x: set(x.double().tolist()) <= {448.0, -1.0}),
    (Float32[Tensor, "3"], st.just(math.inf), lambda x: (x == math.inf).all()),
    (Int64[Tensor, "3"], st.just(2.0), lambda x: (x == 2).all()),
    (Int8[Tensor, "3"], st.sampled_from([-128, 127]), lambda x: set(x.tolist()) <= {-128, 127}),
    (UInt64[Tensor, "3"], st.just(2**64 - 1), lambda x: x.tolist() == [2**64 - 1] * 3),
    (Complex64[Tensor, "3"], st.just(1 + 2j), lambda x: (x == 1 + 2j).all()),
    (Int32[np.ndarray, "3"], st.integers(0, 9), lambda x: ((x >= 0) & (x <= 9)).all()),
    (list[Int64[Tensor, "3"]], st.just(7), lambda xs: all((x == 7).all() for x in xs)),
]  # fmt: skip


@pytest.mark.thin(3)
@pytest.mark.parametrize(("annotation", "elements", "holds"), HELD)
def test_elements_are_the_numbers_that_were_asked_for(annotation, elements, holds):
    values = drawn(tensors(annotation, elements=elements), 20)
    assert all(map(holds, values))


@pytest.mark.parametrize(
    ("family", "value"),
    [
        (UInt8, -1), (UInt8, 300), (Int64, 0.5), (Int64, 2**63), (Int64, math.nan), (Int64, 1j), (Bool, 300),
        (Float32, 1e300), (Float16, 7e4), (Float32, 1j), (Float8e4m3fn, 1000.0), (Float8e4m3fn, math.inf),
        (Float32, "x"), (Float32, torch.ones(2)), (Complex64, 1e300j),
    ],
)  # fmt: skip
def test_an_element_that_the_dtype_cannot_hold_is_an_error_that_names_both(family, value):
    with pytest.raises(ValueError, match=r"^elements= gave .*which \w+ cannot hold"):
        drawn(tensors(family[Tensor, "3"], elements=st.just(value)), 5)


def _all_finite(x):
    wide = x.to(torch.complex128 if x.is_complex() else torch.float64)
    return bool(torch.view_as_real(wide).isfinite().all() if x.is_complex() else wide.isfinite().all())


@pytest.mark.thin(4)
@pytest.mark.parametrize("dtype", [*FLOATING, torch.complex32, torch.complex64, torch.complex128], ids=str)
def test_finite_leaves_infinity_and_nan_out(dtype):
    assert all(map(_all_finite, drawn(tensors(Shaped[Tensor, "4"], dtype=dtype, finite=True), 25)))
    if dtype is torch.float32:
        asked = tensors(X, elements=st.floats(width=32), finite=True)
        assert all(map(_all_finite, drawn(asked, 100)))


BAD_ANNOTATIONS = [
    (Float32, "write Float32"),
    ('Float32[Tensor, "n#"]', "has its # at the end"),
    ('Float32[Tensor, "a,b"]', "has a comma"),
    ('Floaty[Tensor, "n"]', "Floaty"),
    ('list["Missing"]', "Missing"),
    (Float32[Tensor, "a=b=3"], "no Python expression"),
    (Float32[Tensor, "-1"], "less than nothing"),
    (Float32[Tensor, "?a b"], "PyTree"),
    (Float32[Tensor, "n+1 n"], "n is not bound"),
    (Float32[Tensor, "n n-n-1"], "no sizes"),
    (Float32[Tensor, "n n.x"], "cannot be computed"),
    (Float32[Tensor, "{size}"], "inputs_for"),
    (list[Float32[Tensor, "3 -1"]], "less than nothing"),
    (Key[Tensor, ""], "prng_key"),
    (BFloat16[np.ndarray, "n"], "NumPy has no dtype called bfloat16"),
    (Float32[np.ma.MaskedArray, "n"], "MaskedArray"),
    (Float32[nn.UninitializedParameter, "..."], "UninitializedParameter"),
    (Float32[torch._subclasses.FakeTensor, "n"], "FakeTensor"),
    (Float32[torch.masked.MaskedTensor, "n"], "MaskedTensor"),
    (Endless, "without end"),
    (OwnInit, "OwnInit"),
    (3, "3"),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "says"), BAD_ANNOTATIONS, ids=str)
def test_a_bad_annotation_is_refused_at_the_call(annotation, says):
    with pytest.raises(AnnotationError, match=says) as caught:
        tensors(annotation)
    assert str(caught.value).startswith("tensors: ")


@pytest.mark.parametrize(("annotation", "told"), [(int, "int"), (None, "None")])
def test_a_hint_that_holds_no_tensors_is_refused(annotation, told):
    with pytest.raises(TypeError, match=rf"^tensors: the annotation is {told}, .* st.from_type\({told}\)$"):
        tensors(annotation)


@pytest.mark.parametrize(
    "dims",
    ["n n-3000", "n n-n-1", "n n/0", "a b c d e f g h a-b-c-d-e-f-g-h", "n 2**n", "a b c d a/7-b/5+c/3-d/2",
     "n (n-17)*(n-4711)", "h w h//2-w//3 h%7-w%5"],
)  # fmt: skip
def test_sizes_for_hard_expressions_are_found_or_given_up_at_once(dims):
    start = time.process_time()
    try:
        strategy = tensors(Float32[Tensor, dims])
    except AnnotationError:
        strategy = None
    assert time.process_time() - start < 10
    for x in drawn(strategy, 20) if strategy is not None else ():
        assert accepts(Float32[Tensor, dims], x)


# ---------------------------------------------------------------- nothing is left behind


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _facts(x):
    dense = x.clone(memory_format=torch.contiguous_format).reshape(-1)
    return x.dtype, x.shape, x.stride(), x.requires_grad, dense.view(torch.uint8).tolist()


def _state():
    return (
        torch.get_rng_state().tolist(), pickle.dumps(np.random.get_state()), torch.get_default_dtype(),
        torch.empty(0).device, torch.is_inference_mode_enabled(), torch.is_grad_enabled(), list(warnings.filters),
        torch.is_autocast_enabled("cpu"), dtypeguard.get_mode(), len(dtypeguard.casts()),
    )  # fmt: skip


@pytest.mark.parametrize(
    "around",
    [
        contextlib.nullcontext, torch.no_grad, torch.inference_mode, lambda: default_dtype(torch.float64),
        lambda: torch.autocast("cpu", dtype=torch.bfloat16), lambda: dtypeguard.mode("off"),
    ],
    ids="alone no_grad inference dtype autocast mode".split(),
)  # fmt: skip
def test_what_is_drawn_depends_on_nothing_around_it_and_changes_nothing(around):
    def facts():
        found = []

        def law(data):
            before = _state()
            found.append(_facts(data.draw(tensors(Float[Tensor, "a b"], requires_grad=True))))
            assert _state() == before

        holds(st.data(), law, 25)
        return found

    usual = facts()
    with around():
        assert facts() == usual


@pytest.mark.thin(4)
@pytest.mark.parametrize("layout", [*LAYOUTS, None])
@pytest.mark.parametrize("annotation", [Float32[Tensor, "2 3"], Complex64[Tensor, "2 3"], Half[Tensor, "2 3 512 512"]])
def test_values_are_fresh_each_time(annotation, layout):
    @settings(max_examples=8, database=None, deadline=None)
    @given(*[tensors(annotation, layout=layout, elements=st.just(1))] * 2)
    def spoil(x, y):
        assert (x == 1).all()
        assert (y == 1).all()
        x.untyped_storage().fill_(7)
        assert (x != 1).all()
        assert (y == 1).all()

    spoil()


@pytest.mark.thin(3)
@pytest.mark.parametrize("family", [Float32, Complex128, Num, Shaped])
@pytest.mark.parametrize("dims", ["3 1024 1024", "a b c d e f g h i j k l", "3 4096 4096"])
def test_large_tensors_are_drawn_fast_and_take_no_room(family, dims):
    start = time.process_time()
    most = max(x.untyped_storage().nbytes() for x in drawn(tensors(family[Tensor, dims]), 20) if not x.is_quantized)
    assert time.process_time() - start < 5
    assert most <= 32 << 20


def test_a_strategy_s_repr_is_its_annotation():
    texts = {Y: 'Float32[Tensor, "a b"]', X | None: 'Float32[Tensor, "n"] | None', Batch: "Batch"}
    for annotation, text in texts.items():
        assert repr(tensors(annotation)) == f"tensors({text})"


PROGRAM = """
import sys
import torch
from hypothesis import Phase, given, seed, settings
from jaxtyping import Float32, Shaped
from torch import Tensor
from typing import NotRequired, TypedDict
from dtypeguard.testing import tensors

class Features(TypedDict):
    x: Float32[Tensor, "a b"]
    y: NotRequired[Shaped[Tensor, "#b c a+b"]]
    z: NotRequired[int]

@seed(0)
@settings(max_examples=200, database=None, deadline=None, phases=[Phase.generate])
@given(tensors(Features | dict[str, Shaped[Tensor, "*r n"]]))
def show(value):
    print([(k, v.dtype, v.shape, v.stride()) if isinstance(v, Tensor) else (k, v) for k, v in value.items()])

show()
"""


@MANY
def test_the_same_seed_draws_the_same_values_in_every_process():
    runs = []
    for number in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": number}
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
        runs.append(done.stdout)
    assert len(runs[0].splitlines()) == 200
    assert runs[0] == runs[1]


def test_an_audit_of_values_does_not_judge_a_program_by_numbers_that_no_model_is_given():
    @settings(max_examples=25, deadline=None, database=None)
    @given(tensors(Float[Tensor, "b 8"], dtype=["float32", "float16"]))
    def run(x):
        torch.nn.Linear(8, 2).to(x.dtype)(x)

    with dtypeguard.audit(values=True) as report:
        run()
    assert [finding for finding in report.findings if finding.severity != "info"] == []
