"""Hypothesis strategies: annotations over jaxtyping's whole grammar, and values that often fit them."""

import re
import warnings
from typing import Any

import jaxtyping
import numpy as np
import torch
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor, nn

FAMILIES = (
    "Float Float Float32 Float32 Float16 BFloat16 Float64 Int Int64 Int32 UInt UInt8 Integer Bool Complex Complex64 "
    "Inexact Real Num Shaped Shaped Float8e5m2 Float8e4m3fn Int8 Int16 UInt16 Key"
).split()


class Half(jaxtyping.AbstractDtype):
    dtypes = ["float16", "bfloat16"]  # noqa: RUF012  (jaxtyping reads it at class creation)


class Pattern(jaxtyping.AbstractDtype):
    dtypes = re.compile(r"u?int(8|16)$")


def _allocatable() -> list[torch.dtype]:
    dtypes = []
    for name in dir(torch):
        dtype = getattr(torch, name)
        if isinstance(dtype, torch.dtype) and dtype not in dtypes:
            try:
                with warnings.catch_warnings():  # complex32 says, once in a process, that it is experimental
                    warnings.simplefilter("ignore")
                    torch.empty((2,), dtype=dtype, device="meta")
            except (RuntimeError, NotImplementedError, TypeError):
                continue
            dtypes.append(dtype)
    return dtypes


ALLOCATABLE = _allocatable()
USUAL = [torch.float32, torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64]
USUAL += [torch.int32, torch.uint8, torch.bool, torch.complex64]
dtypes = st.one_of(st.sampled_from(USUAL), st.sampled_from(ALLOCATABLE))

_names = st.sampled_from(["a", "b", "c", "a", "b", "n", "True", "class", "é"])
_fixed = st.sampled_from(["0", "1", "2", "3", "4", "-1", "+3", "1_0", "03"])
_symbolic = st.sampled_from(
    ["a+1", "a+b", "2*a", "a-b", "min(a,b)", "max(a,2)", "a//2", "a*b", "3.0", "a==b", "a=b=3", "1//a", "a%2", "zz+1",
     "{n}", "{n}+a", "{self}", "(a)", "abs(a-3)", "a+", "min(a,", "b)", "[a][0]", "sum((a,b))", "a<b", "'a'", "a.x",
     "len({x})", "~a", "a!=b", "int(a/1)", "b-1"]
)  # fmt: skip
_junk = st.sampled_from(
    ["a...", "a,b", "a#", "b#", "@", "a$", "##a", "__", "é=2", "=", "==", "?", "*", "#", "_", "*_", "_*"]
)
_prefix = st.text("#*_?", max_size=2)


@st.composite
def tokens(draw: st.DrawFn) -> str:
    """One axis, mostly well-formed."""
    kind = draw(st.integers(0, 39))
    if kind < 9:
        return draw(_names)
    if kind < 11:
        return draw(_fixed)
    if kind < 13:
        return "..."
    if kind < 15:
        return draw(st.sampled_from(["*a", "*b", "*#a", "*#b", "*_", "#*b"]))
    if kind < 17:
        return "#" + draw(st.one_of(_names, _fixed, _symbolic))
    if kind < 19:
        return draw(_symbolic)
    if kind < 20:
        return "_" + draw(st.sampled_from(["", "a", "b"]))
    if kind < 21:
        return draw(st.sampled_from(["d=", "a=", "#d=", "d=#", "a<=", "{n}=", "d=_", "d=*"])) + draw(
            st.one_of(_names, _fixed, st.just("..."))
        )
    if kind < 22:
        return draw(_prefix) + draw(st.one_of(_names, _fixed, _symbolic))
    return draw(_junk) if kind == 22 else draw(_names)


dim_strs = st.lists(tokens(), max_size=4).map(" ".join)


@st.composite
def sizes_for(
    draw: st.DrawFn, dim_str: str, sizes: dict[str, int], runs: dict[str, tuple[int, ...]]
) -> tuple[int, ...]:
    """A shape that fits `dim_str` under an assignment of axes, with an occasional fault."""
    shape: list[int] = []
    for token in dim_str.split():
        bare = token.rpartition("=")[2].lstrip("#_?")
        if token == "..." or "*" in token:
            run = runs.get(bare.lstrip("*#_"), ())
            shape += run if draw(st.integers(0, 11)) else draw(st.lists(st.integers(0, 3), max_size=2))
        elif "#" in token and draw(st.booleans()):
            shape.append(1)
        elif bare in sizes:
            shape.append(sizes[bare])
        else:
            scope = {**sizes, **__builtins__} if isinstance(__builtins__, dict) else dict(sizes)
            try:
                value = eval(bare.replace("{n}", "2").replace("{x}", "(1,)"), scope)
                shape.append(int(value) if 0 <= int(value) <= 6 else 2)
            except Exception:
                shape.append(draw(st.integers(0, 4)))
    fault = draw(st.integers(0, 29))
    if fault == 0 and shape:
        shape[draw(st.integers(0, len(shape) - 1))] = draw(st.integers(0, 4))
    elif fault == 1:
        shape.append(2)
    elif fault == 2 and shape:
        shape.pop()
    return tuple(shape)


def array_of(array_type: Any, dtype: torch.dtype, shape: tuple[int, ...], numpy: bool) -> Any:
    """An array without data worth speaking of."""
    if numpy:
        try:
            return np.empty(shape, dtype=str(dtype).removeprefix("torch."))
        except TypeError:
            return np.empty(shape, dtype="float32")
    tensor = torch.empty(shape, dtype=dtype, device="meta")
    floating = dtype.is_floating_point or dtype.is_complex
    return nn.Parameter(tensor, requires_grad=False) if array_type is nn.Parameter and floating else tensor


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[tuple[str, Any, list[str]]], list[Any]]:
    """Annotations as (family, array type, dim strings from the outside in), one for each of some values.

    The last value is what the function returns.
    """
    sizes = {name: draw(st.integers(0, 4)) for name in ("a", "b", "c", "n", "True", "class", "é", "")}
    runs = {name: tuple(draw(st.lists(st.integers(0, 3), max_size=2))) for name in ("a", "b", "", "...")}
    annotations, values = [], []
    for _ in range(draw(st.integers(1, 4))):
        family = draw(st.sampled_from([*FAMILIES, "Half", "Pattern"]))
        array_type = draw(st.sampled_from([Tensor] * 9 + [np.ndarray, Any, nn.Parameter]))
        parts = [draw(dim_strs)] if draw(st.integers(0, 9)) else [draw(dim_strs), draw(dim_strs)]
        annotations.append((family, array_type, parts))
        whole = " ".join(parts)
        shape = draw(sizes_for(whole, sizes, runs))
        dtype = draw(dtypes) if not draw(st.integers(0, 11)) else _member(family, draw)
        odd = draw(st.integers(0, 40))
        numpy = array_type is np.ndarray if odd else array_type is not np.ndarray
        values.append(
            draw(st.sampled_from([None, 1.5, [1.0]])) if odd == 1 else array_of(array_type, dtype, shape, numpy)
        )
    return annotations, values


def family_of(name: str) -> Any:
    return {"Half": Half, "Pattern": Pattern}.get(name) or getattr(jaxtyping, name)


def _member(family: str, draw: st.DrawFn) -> torch.dtype:
    names = family_of(family).dtypes
    known = [d for d in ALLOCATABLE if isinstance(names, tuple) and str(d).removeprefix("torch.") in names]
    return draw(st.sampled_from(known or ALLOCATABLE))


def holds(strategy, law, examples=40, start=0):
    """Every value that is drawn satisfies a law; the same values in each run, with hypothesis' health checks."""

    @seed(start)
    @settings(max_examples=examples, database=None, deadline=None, phases=[Phase.generate])
    @given(strategy)
    def test(value):
        law(value)

    test()


def drawn(strategy, examples=60, start=0):
    """Values of a strategy, the same ones in each run."""
    values = []
    holds(strategy, values.append, examples, start)
    return values
