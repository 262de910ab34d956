"""`testing.violations_of` draws values that break an annotation in exactly one way, and says in which."""

import collections
import collections.abc
import contextlib
import re
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, NotRequired, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, find, given, seed, settings
from hypothesis import strategies as st
from jaxtyping import (
    Float,
    Float32,
    Int,
    Shaped,
)
from strategies import FAMILIES, dim_strs, drawn, family_of, holds
from torch import Tensor, nn
from typing_extensions import TypedDict

import dtypeguard
from dtypeguard import AnnotationError, CastError, CastWarning, DtypeError, HintError, ShapeError, check, enforce
from dtypeguard.testing import Breach, tensors, violations_of

Row = Float32[Tensor, "b"]
Grid = Float32[Tensor, "b c"]
UNEXPLAINED = (Phase.generate, Phase.shrink)  # explanations are found by tracing, which is slow
ERRORS = {
    "dtype": DtypeError, "rank": ShapeError, "axis": ShapeError, "type": HintError, "length": HintError,
    "key": HintError, "hint": HintError,
}  # fmt: skip


# ---------------------------------------------------------------- one table of annotations


class Required(TypedDict):
    a: Row
    n: int


class Total(TypedDict, total=False):
    a: Row
    b: Row


class Partly(TypedDict):
    a: Row
    b: NotRequired[Row]


@dataclass
class Sample:
    x: Row
    y: Row
    n: int = 0


@dataclass
class Linear:
    weight: Grid
    bias: Float32[Tensor, "c"]


@dataclass
class Node:
    x: Row
    next: "Node | None" = None


class Pair(NamedTuple):
    x: Row
    n: int


Bound = TypeVar("Bound", bound=Row)
TENSOR = {"type", "dtype", "rank"}

# annotation, the kinds of breach that it has
ANNOTATIONS = {
    "two axes": (Grid, TENSOR),
    "scalar": (Float32[Tensor, ""], TENSOR),
    "anything shaped": (Shaped[Tensor, "..."], {"type"}),
    "any dtype": (Shaped[Tensor, "a b"], {"type", "rank"}),
    "family": (Float[Tensor, "b"], TENSOR),
    "fixed": (Float32[Tensor, "3 4"], {*TENSOR, "axis"}),
    "variadic": (Float32[Tensor, "*b c"], TENSOR),
    "variadic alone": (Float32[Tensor, "*b"], {"type", "dtype"}),
    "anonymous": (Float32[Tensor, "_ _"], TENSOR),
    "broadcast": (Float32[Tensor, "#b #c"], TENSOR),
    "broadcast fixed": (Float32[Tensor, "#3"], {*TENSOR, "axis"}),
    "square": (Float32[Tensor, "n n"], {*TENSOR, "axis"}),
    "symbolic": (Float32[Tensor, "a b a+b 2*a-1"], {*TENSOR, "axis"}),
    "symbolic broadcast": (Float32[Tensor, "a #a+1"], {*TENSOR, "axis"}),
    "indexed": (Float32[Tensor, "a b [a][0]"], {*TENSOR, "axis"}),
    "of an attribute": (Float32[Tensor, "a a.real"], {*TENSOR, "axis"}),
    "tensor": (Tensor, {"type"}),
    "LongTensor": (torch.LongTensor, {"type", "dtype"}),
    "parameter": (nn.Parameter, {"type"}),
    "float32 parameter": (Float32[nn.Parameter, "b"], TENSOR),
    "array": (Float32[np.ndarray, "b 3"], {*TENSOR, "axis"}),
    "array of any library": (Shaped[Any, "b 3"], {"type", "rank", "axis"}),
    "optional": (Float[Tensor, "b 3"] | None, {*TENSOR, "axis"}),
    "union of ranks": (Float32[Tensor, "a"] | Float32[Tensor, "a b"], TENSOR),
    "union of dtypes": (Float32[Tensor, "..."] | Int[Tensor, "..."], {"type", "dtype"}),
    "wide and narrow": (Float32[Tensor, "a a"] | Float32[Tensor, "a"] | None, {*TENSOR, "axis"}),
    "tensor or number": (Float32[Tensor, "a"] | int | str, {*TENSOR, "hint"}),
    "list": (list[Float[Tensor, "b"]], {*TENSOR, "axis"}),
    "list of optional": (list[Row | None], {*TENSOR, "axis"}),
    "list of lists": (list[list[Row]], {*TENSOR, "axis"}),
    "tuple of any length": (tuple[Row, ...], {*TENSOR, "axis"}),
    "tuple": (tuple[Row, Row], {*TENSOR, "axis", "length"}),
    "tuple of ranks": (tuple[Row, Grid], {*TENSOR, "axis", "length"}),
    "tuple with an expression": (tuple[Row, Float32[Tensor, "b+1"]], {*TENSOR, "axis", "length"}),
    "tuple with an option": (tuple[Row | None, Grid], {*TENSOR, "axis", "length"}),
    "tuple with a number": (tuple[Row, int], {*TENSOR, "hint", "length"}),
    "tuple of variadics": (tuple[Float32[Tensor, "*b"], Float32[Tensor, "*b"]], {"type", "dtype", "axis", "length"}),
    "dict": (dict[str, Row], {*TENSOR, "axis", "hint"}),
    "ordered dict": (collections.OrderedDict[str, Row], {*TENSOR, "axis", "hint"}),
    "default dict": (collections.defaultdict[str, Row], {*TENSOR, "axis", "hint"}),
    "typed dict": (Required, {*TENSOR, "key"}),
    "typed dict without duties": (Total, {*TENSOR, "axis"}),
    "typed dict, partly": (Partly, {*TENSOR, "axis", "key"}),
    "dataclass": (Sample, {*TENSOR, "axis"}),
    "dataclass of ranks": (Linear, {*TENSOR, "axis"}),
    "recursive dataclass": (Node, {*TENSOR, "axis"}),
    "named tuple": (Pair, TENSOR),
    "deep": (dict[str, list[tuple[Row, int]]], {*TENSOR, "axis", "hint", "length"}),
    "annotated": (Annotated[Row, "documented"], TENSOR),
    "type variable": (Bound, TENSOR),
    "string": ('Float32[Tensor, "b 3"]', {*TENSOR, "axis"}),
    "int": (int, {"hint"}),
    "optional int": (int | None, {"hint"}),
    "list of numbers": (list[int], {"hint"}),
    "set of strings": (set[str], {"hint"}),
    "deque": (collections.deque[Row], {"type", "dtype", "rank", "axis"}),
    "iterator": (collections.abc.Iterator[Row], {"hint"}),
    "keys": (dict[int, Row], {"type", "dtype", "rank", "axis", "hint"}),
    "tuple of numbers": (tuple[int, str], {"hint"}),
}  # fmt: skip


def is_one_fault(breach, annotation):
    assert isinstance(breach, Breach)
    assert breach.error is ERRORS[breach.kind]
    with pytest.raises(breach.error) as caught:
        check(breach.value, annotation, mode="strict")
    assert type(caught.value) is breach.error
    assert caught.value.violations == (breach.says,)
    assert breach.says in str(caught.value)


def is_never_silent(breach, annotation):
    """Lenient mode refuses it too, or repairs it, says so, and then nothing else is wrong."""
    dtypeguard.reset_casts()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            repaired = check(breach.value, annotation)
        except (CastError, ShapeError, HintError):
            return
    assert breach.kind in ("dtype", "type")
    assert [w.category for w in caught if issubclass(w.category, CastWarning)] == [CastWarning]
    check(repaired, annotation, mode="strict")


@pytest.mark.thin(4)
@pytest.mark.filterwarnings("ignore:enforce reads annotations")  # some of these have no tensor
@pytest.mark.parametrize("name", ANNOTATIONS)
@pytest.mark.parametrize("examples", [25, pytest.param(500, marks=pytest.mark.slow)])
def test_a_breach_is_exactly_what_it_says(name, examples):
    """For the reference and for the generated wrapper, which are two programs."""
    annotation, kinds = ANNOTATIONS[name]

    def fn(value):
        raise AssertionError("the body ran")

    fn.__annotations__ = {"value": annotation}
    strict, reached = enforce(fn, mode="strict"), set()

    def law(breach):
        is_one_fault(breach, annotation)
        is_never_silent(breach, annotation)
        with pytest.raises(breach.error) as caught:
            strict(breach.value)
        assert caught.value.violations == (breach.says,)
        reached.add(breach.kind)

    holds(violations_of(annotation), law, examples)
    assert reached == kinds if examples > 25 else reached <= kinds


def test_every_kind_is_reached_among_a_hundred():
    annotation, kinds = ANNOTATIONS["tuple of ranks"]
    assert {breach.kind for breach in drawn(violations_of(annotation), 100)} == kinds


# ---------------------------------------------------------------- the rest of the value is right


def test_a_tuple_is_too_long_or_too_short_by_one():
    lengths = set()

    def law(breach):
        if breach.kind == "length":
            lengths.add(len(breach.value))
            assert f"is a tuple of {len(breach.value)}" in breach.says
            if len(breach.value) == 3:
                check(breach.value[:2], tuple[Row, Row], mode="strict")

    holds(violations_of(tuple[Row, Row]), law, 200)
    assert lengths == {1, 3}


def test_a_wrong_axis_is_the_only_wrong_axis():
    def law(breach):
        if breach.kind == "axis":
            wrong = [n for n, size in enumerate(breach.value.shape) if size != (3, 4)[n]]
            assert len(wrong) == 1
            assert breach.value.dtype is torch.float32
        if breach.kind == "rank":
            assert breach.value.dtype is torch.float32
            assert breach.value.dim() != 2
        if breach.kind == "dtype":
            assert breach.value.shape == (3, 4)
            assert breach.value.dtype is not torch.float32

    holds(violations_of(Float32[Tensor, "3 4"]), law, 150)


def test_a_wrong_rank_is_higher_and_lower():
    def ranks(annotation):
        return {b.value.dim() for b in drawn(violations_of(annotation), 200) if b.kind == "rank"}

    assert ranks(Grid) >= {0, 1, 3}
    assert ranks(Float32[Tensor, ""]) == {1}
    assert ranks(Float32[Tensor, "*b c d"]) == {0, 1}


@enforce
@dataclass
class Checked:
    x: Row
    y: Row


@enforce
class CheckedPair(NamedTuple):
    x: Row
    y: Row


@dataclass
class Picky:
    x: Row

    def __post_init__(self):
        if self.x.dim() != 1:
            raise ValueError("one axis, please")


@dataclass
class Converting:
    x: Row

    def __post_init__(self):
        self.x = self.x.float()


@pytest.mark.thin(4)
@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize("hint", [Checked, CheckedPair, Picky, Converting, list[Checked], Checked | None], ids=str)
def test_classes_that_look_at_their_fields_are_broken_all_the_same(hint, mode):
    with dtypeguard.mode(mode):
        holds(violations_of(hint), lambda breach: is_one_fault(breach, hint), 25)
    assert dtypeguard.casts() == []


def test_the_right_parts_have_the_axes_and_the_device_that_were_asked_for():
    def law(breach):
        assert not isinstance(breach.value, Tensor) or breach.value.is_meta
        if breach.kind in ("dtype", "axis"):
            assert breach.value.shape[0] in (5, 6)

    axes = {"b": st.sampled_from((5, 6))}
    holds(violations_of(Float32[Tensor, "b 3"], axes=axes, device="meta"), law, 100)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (Any, "nothing breaks Any"),
        (Row | Any, "nothing breaks"),
        ("Float32[Tensor, 'a,b']", "a,b"),
        ("Float32[Tensor, 'a+']", "a+"),
        ("Nowhere", "Nowhere"),
        (Float32[Tensor, "-1"], "-1"),
        (Float32[Tensor, "?a"], "?a"),
        (Float32[Tensor, "a+1 a"], "not bound yet"),
        (Float32[Tensor, "a -a-1"], "no sizes of its axes"),
        (Float32[Tensor, "{n}"], "use inputs_for"),
        (Float32, "alone is no annotation"),
        (torch.ones(2), "a tensor is no annotation"),
    ],
    ids=str,
)
def test_what_cannot_be_broken_is_refused_at_the_call(annotation, said):
    with pytest.raises(AnnotationError) as caught:
        violations_of(annotation)
    assert said in str(caught.value)


# ---------------------------------------------------------------- as hypothesis sees it

SMALLEST = [
    (Grid, "dtype", "tensor([[0.]], dtype=torch.float64)"),
    (Grid, "rank", "tensor(0.)"),
    (Float[Tensor, "b 3"], "axis", "tensor([[0.]])"),
    (Float32[Tensor, "n n"], "axis", "tensor([[0.], [0.]])"),
    (list[Row], "dtype", "[tensor([0.], dtype=torch.float64)]"),
    (list[Row], "axis", "[tensor([0.]), tensor([0., 0.])]"),
    (tuple[Row, Row], "axis", "(tensor([0.]), tensor([0., 0.]))"),
    (tuple[Row, int], "length", "(tensor([0.]),)"),
    (dict[str, Row], "dtype", "{'': tensor([0.], dtype=torch.float64)}"),
    (Required, "key", "{'n': 0}"),
    (Sample, "dtype", "Sample(x=tensor([0.], dtype=torch.float64), y=tensor([0.]), n=0)"),
    (int, "hint", "None"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("annotation", "kind", "smallest"), SMALLEST, ids=str)
def test_a_breach_shrinks_to_something_small(annotation, kind, smallest):
    thorough = settings(max_examples=500, database=None, derandomize=True)
    found = find(violations_of(annotation), lambda breach: breach.kind == kind, settings=thorough)
    assert " ".join(str(found.value).split()) == smallest
    is_one_fault(found, annotation)


def test_a_failure_shows_the_breach():
    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @given(violations_of(Grid))
    def test(breach):
        assert breach.kind != "dtype"

    with pytest.raises(AssertionError) as caught:
        test()
    note = "\n".join(caught.value.__notes__)
    assert "kind='dtype'" in note
    assert "argument `value` is float64, the annotation wants float32" in note
    assert "tensor([[0.]], dtype=torch.float64)" in note


# ---------------------------------------------------------------- annotations by chance


def random_annotations(count, n):
    """Annotations over jaxtyping's whole grammar that jaxtyping itself accepts."""
    found = []

    @seed(n)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(FAMILIES), dim_strs)
    def collect(family, dim_str):
        with contextlib.suppress(ValueError):
            found.append(family_of(family)[Tensor, dim_str])

    collect()
    return found


@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_random_annotations_have_breaches_or_are_refused_as_tensors_refuses_them(count):
    broken = refused = 0
    for annotation in random_annotations(count, 1):
        try:
            tensors(annotation)
        except AnnotationError as error:
            refused += 1
            with pytest.raises(AnnotationError, match=re.escape(str(error).partition(": ")[2])):
                violations_of(annotation)
            continue
        for breach in drawn(violations_of(annotation), 8):
            is_one_fault(breach, annotation)
            assert not isinstance(breach.value, annotation)
            broken += 1
    assert broken > refused
    assert refused or count == 40
