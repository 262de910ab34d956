"""The one table of dtypes, and the casting ladder that follows from it."""

import inspect
import itertools
import math
from typing import get_args

import pytest
import torch

import dtypeguard
from dtypeguard._core.base.dtypes import (
    BY_NAME,
    FLOATING,
    HALF,
    TABLE,
    Casting,
    DtypeName,
    FloatName,
    HalfName,
    Kind,
    dtype_of,
    dtypes_named,
    may_cast,
    survives,
)

EVERY = {getattr(torch, name) for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}
NUMBERS = [dtype for dtype, info in TABLE.items() if info.kind is not Kind.STORAGE]
STORAGE = [dtype for dtype, info in TABLE.items() if info.kind is Kind.STORAGE]
PAIRS = list(itertools.product(NUMBERS, NUMBERS))


def test_every_dtype_of_the_running_torch_is_classified():
    assert set(TABLE) == EVERY


def test_names_are_torch_s_own():
    assert all(str(dtype) == f"torch.{name}" for name, dtype in BY_NAME.items())


def test_type_checkers_know_the_names_that_options_take():
    every, floats = {*get_args(DtypeName.__value__)}, {*get_args(FloatName.__value__)}
    assert {*BY_NAME} <= every
    assert {dtype_of(name, "dtype") for name in floats} == FLOATING
    assert {name for name, dtype in BY_NAME.items() if dtype in FLOATING} == {*BY_NAME} & floats
    assert {dtype_of(name, "dtype") for name in get_args(HalfName.__value__)} == HALF


def test_help_names_the_kinds_of_dtypes_and_does_not_list_them():
    for function in (dtypeguard.compare, dtypeguard.dryrun, dtypeguard.guard):
        assert "'f16'" not in str(inspect.signature(function))


def test_floating_agrees_with_torch_but_for_storage():
    theirs = {dtype for dtype in EVERY if dtype.is_floating_point}
    assert theirs - FLOATING == {dtype for dtype in STORAGE if dtype.is_floating_point}


def test_an_integer_has_a_sign_unless_its_name_denies_it():
    signed = {name: TABLE[dtype].signed for name, dtype in BY_NAME.items() if name.startswith(("int", "uint"))}
    assert {"int4", "uint4", "int8", "uint64"} <= set(signed)
    assert signed == {name: name.startswith("i") for name in signed}


def test_digits_and_exponents_are_torch_s_own():
    for dtype in NUMBERS:
        info = TABLE[dtype]
        if info.kind is Kind.INT:
            assert torch.iinfo(dtype).max == 2**info.digits - 1
        elif info.kind is not Kind.BOOL:
            assert torch.finfo(dtype).eps == 2.0 ** (1 - info.digits)
            assert math.frexp(torch.finfo(dtype).max)[1] == info.emax + 1


def _extremes(dtype):
    """Values at the edges of a dtype, exactly, as Python numbers."""
    if dtype is torch.bool:
        return [False, True]
    if dtype.is_complex:
        return [complex(v, -v) for v in _extremes(dtype.to_real())]
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        return [0.0, info.max, info.min, info.tiny, info.smallest_normal, 1 + info.eps]
    info = torch.iinfo(dtype)
    return [0, 1, info.max, info.min, info.max - 1]


def _exactly(values, source, target):
    tensor = torch.tensor(values, dtype=source)
    return tensor.to(target).tolist() == tensor.tolist()


@pytest.mark.filterwarnings("ignore:B?Complex")
def test_what_survives_keeps_its_value():
    surviving = [pair for pair in PAIRS if survives(*pair)]
    assert [pair for pair in surviving if not _exactly(_extremes(pair[0]), *pair)] == []


@pytest.mark.filterwarnings("ignore:B?Complex")
def test_within_a_kind_what_does_not_survive_loses_a_value():
    lost = [(a, b) for a, b in PAIRS if TABLE[a].kind is TABLE[b].kind and not survives(a, b)]
    assert [pair for pair in lost if _exactly(_extremes(pair[0]), *pair)] == []


def test_each_rung_of_the_ladder_includes_the_one_before():
    for source, target in itertools.product(TABLE, TABLE):
        allowed = [may_cast(source, target, rung) for rung in Casting]
        assert allowed == sorted(allowed)
        assert allowed[-1]


@pytest.mark.parametrize(
    ("source", "target", "rung"),
    [
        (torch.float16, torch.float32, "SAFE"),
        (torch.int32, torch.int64, "SAFE"),
        (torch.uint8, torch.int16, "SAFE"),
        (torch.float64, torch.float32, "PRECISION"),
        (torch.float32, torch.bfloat16, "PRECISION"),
        (torch.float16, torch.bfloat16, "PRECISION"),
        (torch.complex128, torch.complex64, "PRECISION"),
        (torch.bool, torch.int64, "PROMOTE"),
        (torch.bool, torch.float32, "PROMOTE"),
        (torch.uint8, torch.float32, "PROMOTE"),
        (torch.int64, torch.float32, "PROMOTE"),
        (torch.float32, torch.complex64, "PROMOTE"),
        (torch.float32, torch.int64, "UNSAFE"),
        (torch.complex64, torch.float32, "UNSAFE"),
        (torch.int64, torch.int32, "UNSAFE"),
        (torch.int8, torch.uint8, "UNSAFE"),
        (torch.uint8, torch.bool, "UNSAFE"),
        (torch.float32, torch.float8_e4m3fn, "UNSAFE"),
        (torch.float8_e5m2, torch.float32, "UNSAFE"),
    ],
    ids=str,
)
def test_the_lowest_rung_that_allows_a_cast(source, target, rung):
    assert next(r.name for r in Casting if may_cast(source, target, r)) == rung


@pytest.mark.parametrize("storage", STORAGE, ids=str)
def test_storage_is_never_cast_below_unsafe(storage):
    others = [dtype for dtype in TABLE if dtype is not storage]
    assert not any(may_cast(storage, d, Casting.PROMOTE) or may_cast(d, storage, Casting.PROMOTE) for d in others)


def test_a_family_s_names_are_found_in_the_table():
    assert dtypes_named(("float16", "bfloat16", "no_such_dtype")) == {torch.float16, torch.bfloat16}
    assert dtypes_named(None) is None
