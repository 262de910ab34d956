"""`enforce` accepts exactly what jaxtyping accepts, with the same class of error; wrapper and reference agree."""

import pytest
from differential import annotation_of, enforce_says, jaxtyping_says
from hypothesis import HealthCheck, given, settings
from jaxtyping import Float, _array_types
from strategies import cases, dim_strs
from torch import Tensor

from dtypeguard import AnnotationError
from dtypeguard._core.contract.dims import DimKind, parse_dims
from dtypeguard._core.contract.spec import spec_of


@settings(max_examples=4 * settings.default.max_examples, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_enforce_and_jaxtyping_and_reference_agree(case):
    assert enforce_says(case) == jaxtyping_says(case)


def _as_jaxtyping_has_it(dim):
    """A `Dim` in the shape of jaxtyping's private dim classes: (class name, its fields)."""
    if dim.kind is DimKind.ANONYMOUS:
        return "_AnonymousVariadicDim" if dim.variadic else "_AnonymousDim"
    if dim.kind is DimKind.NAMED:
        return ("_NamedVariadicDim" if dim.variadic else "_NamedDim", dim.text, dim.broadcast, dim.tree)
    if dim.kind is DimKind.FIXED:
        return ("_FixedDim", dim.size, dim.broadcast)
    return ("_SymbolicDim", dim.text, dim.broadcast)


def _theirs(dim):
    if type(dim) is object:  # jaxtyping < 0.3.10: nameless dims were sentinels; goes with that floor
        return "_AnonymousVariadicDim" if dim is _array_types._anonymous_variadic_dim else "_AnonymousDim"
    fields = [getattr(dim, name) for name in getattr(dim, "__dataclass_fields__", {})]
    return (type(dim).__name__, *fields) if fields else type(dim).__name__


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(dim_strs)
def test_our_parser_reads_what_jaxtyping_reads(dim_str):
    try:
        theirs = [_theirs(dim) for dim in Float[Tensor, dim_str].dims]
    except ValueError:
        with pytest.raises(AnnotationError):
            parse_dims(dim_str)
        return
    try:
        ours = [_as_jaxtyping_has_it(dim) for dim in parse_dims(dim_str)]
    except AnnotationError as error:
        fault = str(error)
    else:
        assert ours == theirs
        return
    assert "no Python expression" in fault or "less than nothing" in fault  # jaxtyping finds out only at a call


def test_a_spec_is_made_once_for_equal_annotations():
    assert spec_of(Float[Tensor, "a b"]) is spec_of(Float[Tensor, "a b"])
    assert spec_of(annotation_of("Float", Tensor, ["a", "b"])) is not spec_of(Float[Tensor, "a"])
