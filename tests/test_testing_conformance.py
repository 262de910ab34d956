"""`testing.tensors` against jaxtyping and `check`: values for each annotation of a table, and annotations at random.

`make conformance` draws ten thousand values for each.
"""

import itertools
import os
from typing import Union

import numpy as np
import pytest
import torch
from differential import _unparsable, annotation_of
from hypothesis import strategies as st
from strategies import FAMILIES, dim_strs, drawn
from test_testing_tensors import ANNOTATIONS, accepts
from torch import Tensor, nn

import dtypeguard
from dtypeguard import AnnotationError
from dtypeguard.testing import tensors

VALUES = int(os.environ.get("DTYPEGUARD_VALUES", "300"))
MANY = pytest.mark.slow
KINDS = st.sampled_from([Tensor] * 8 + [np.ndarray, nn.Parameter])


def keeps(annotation, examples):
    values = drawn(tensors(annotation), examples)
    for value in values:
        assert accepts(annotation, value)
        assert dtypeguard.check(value, annotation, mode="strict") is value
    assert dtypeguard.casts() == []
    return len(values)


@pytest.mark.thin(8)
@pytest.mark.parametrize("name", ANNOTATIONS)
@pytest.mark.parametrize("examples", [20, pytest.param(VALUES, marks=MANY)])
def test_every_value_keeps_its_annotation(name, examples):
    assert keeps(ANNOTATIONS[name], examples)


# ---------------------------------------------------------------- annotations at random


@st.composite
def arrays(draw):
    """A jaxtyping annotation over the whole grammar, or None for what jaxtyping itself refuses."""
    parts = draw(st.lists(dim_strs, min_size=1, max_size=2))
    try:
        return annotation_of(draw(st.sampled_from([*FAMILIES, "Half", "Pattern"])), draw(KINDS), parts)
    except ValueError:
        return None


_variadic = ("...", "*a", "*b", "*#a", "*#b")
_token = st.sampled_from(
    [*"aabbcn123_", *_variadic, "#a", "#b", "#1", "#3", "_a", "a+1", "a+b", "2*a", "a-b", "min(a,b)", "max(a,2)",
     "a//2", "a*b", "#a+1", "#a+b", "d=a", "d=4"]
)  # fmt: skip
_well_formed = st.lists(_token, max_size=4).filter(lambda tokens: sum(t in _variadic for t in tokens) < 2)


@st.composite
def leaves(draw):
    family = draw(st.sampled_from(["Float", "Float32", "Int", "Shaped", "Num", "Half", "Pattern"]))
    return annotation_of(family, draw(KINDS), [" ".join(draw(_well_formed))])


def _around(inner):
    return st.one_of(
        inner.map(lambda hint: list[hint]),
        inner.map(lambda hint: dict[str, hint]),
        inner.map(lambda hint: tuple[hint, ...]),
        inner.map(lambda hint: hint | None),
        st.tuples(inner, inner).map(lambda pair: Union[pair]),  # noqa: UP007  (a tuple of them)
        st.lists(inner, min_size=1, max_size=3).map(lambda hints: tuple[tuple(hints)]),
    )


CONTAINERS = st.recursive(leaves(), _around, max_leaves=4)


def judged(hint, examples=12):
    """'refused' at the call, or 'drawn': values that jaxtyping and `check` accept; anything else fails."""
    try:
        tensors(hint)
    except AnnotationError:
        return "refused"
    assert keeps(hint, examples)
    return "drawn"


@pytest.mark.parametrize("count", [100, pytest.param(600, marks=MANY)])
def test_an_annotation_at_random_is_refused_at_the_call_or_has_values(count):
    verdicts = [judged(hint) for hint in drawn(arrays(), count) if hint is not None]
    assert verdicts.count("drawn") > len(verdicts) // 2
    assert "refused" in verdicts


@pytest.mark.parametrize("count", [40, pytest.param(300, marks=MANY)])
def test_a_container_at_random_is_refused_at_the_call_or_has_values(count):
    verdicts = [judged(hint) for hint in drawn(CONTAINERS, count, 1)]
    assert verdicts.count("drawn") > len(verdicts) // 2


def _shape_that_fits(hint, rank):
    """The first small shape that jaxtyping accepts; None if there is none."""
    for length in range(rank + 1):
        for shape in itertools.product((1, 2, 3, 4, 0), repeat=length):
            try:
                if accepts(hint, torch.empty(shape, device="meta")):
                    return shape
            except Exception:  # an axis that cannot be computed with these sizes
                continue
    return None


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=MANY)])
def test_what_is_refused_has_no_shape_that_jaxtyping_accepts(count):
    refused = 0
    for dim_str in dict.fromkeys(drawn(dim_strs, count, 2)):
        try:
            hint = annotation_of("Shaped", Tensor, [dim_str])
        except ValueError:
            continue
        if _unparsable(hint) or any(sign in dim_str for sign in "{'?"):  # arguments, f-strings, paths of a PyTree
            continue
        try:
            tensors(hint)
        except AnnotationError:
            refused += 1
            assert _shape_that_fits(hint, min(4, 1 + len(dim_str.split()))) is None, dim_str
    assert refused
