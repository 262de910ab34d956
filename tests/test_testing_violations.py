"""`testing.violations_of` draws values that break an annotation in exactly one way, and says in which."""

import collections
import collections.abc
import contextlib
import dataclasses
import enum
import functools
import random
import re
import types
import typing
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypeVar

import numpy as np
import pytest
import torch
from beartype import BeartypeConf
from beartype.door import is_bearable
from hypothesis import HealthCheck, Phase, find, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from jaxtyping import (
    AbstractArray,
    Bool,
    Complex,
    Float,
    Float8e4m3fn,
    Float32,
    Inexact,
    Int,
    Num,
    Real,
    Shaped,
    UInt8,
)
from strategies import FAMILIES, dim_strs, family_of
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


def holds(strategy, law, examples=60):
    """Every value that is drawn satisfies a law; the same values in every run."""

    @settings(max_examples=examples, deadline=None, database=None, phases=UNEXPLAINED, derandomize=True)
    @given(strategy)
    def test(value):
        law(value)

    test()


def drawn(strategy, examples=60):
    values = []
    holds(strategy, values.append, examples)
    return values


def refusal(value, annotation):
    with pytest.raises(dtypeguard.DtypeGuardError) as caught:
        check(value, annotation, mode="strict")
    return caught.value


# ---------------------------------------------------------------- one table of annotations


class Color(enum.Enum):
    RED = 1


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
    "fixed and named": (Float[Tensor, "b 3"], {*TENSOR, "axis"}),
    "nothing in it": (Float32[Tensor, "0"], {*TENSOR, "axis"}),
    "variadic": (Float32[Tensor, "*b c"], TENSOR),
    "variadic alone": (Float32[Tensor, "*b"], {"type", "dtype"}),
    "dots": (Float32[Tensor, "..."], {"type", "dtype"}),
    "dots and fixed": (Float32[Tensor, "... 3"], {*TENSOR, "axis"}),
    "anonymous": (Float32[Tensor, "_ _"], TENSOR),
    "broadcast": (Float32[Tensor, "#b #c"], TENSOR),
    "broadcast fixed": (Float32[Tensor, "#3"], {*TENSOR, "axis"}),
    "broadcast variadic": (Float32[Tensor, "*#b"], {"type", "dtype"}),
    "square": (Float32[Tensor, "n n"], {*TENSOR, "axis"}),
    "cube": (Int[Tensor, "n n n"], {*TENSOR, "axis"}),
    "square of ones": (Float32[Tensor, "#n #n"], {*TENSOR, "axis"}),
    "symbolic": (Float32[Tensor, "a b a+b 2*a-1"], {*TENSOR, "axis"}),
    "symbolic broadcast": (Float32[Tensor, "a #a+1"], {*TENSOR, "axis"}),
    "indexed": (Float32[Tensor, "a b [a][0]"], {*TENSOR, "axis"}),
    "of an attribute": (Float32[Tensor, "a a.real"], {*TENSOR, "axis"}),
    "documented axis": (Float32[Tensor, "b channels=3"], {*TENSOR, "axis"}),
    "integers": (Int[Tensor, "b"], TENSOR),
    "bool": (Bool[Tensor, "b"], TENSOR),
    "complex": (Complex[Tensor, "b"], TENSOR),
    "numbers": (Num[Tensor, "b"], TENSOR),
    "real": (Real[Tensor, "b"], TENSOR),
    "inexact": (Inexact[Tensor, "b"], TENSOR),
    "image": (UInt8[Tensor, "h w 3"], {*TENSOR, "axis"}),
    "float8": (Float8e4m3fn[Tensor, "b"], TENSOR),
    "tensor": (Tensor, {"type"}),
    "LongTensor": (torch.LongTensor, {"type", "dtype"}),
    "parameter": (nn.Parameter, {"type"}),
    "float32 parameter": (Float32[nn.Parameter, "b"], TENSOR),
    "array": (Float32[np.ndarray, "b 3"], {*TENSOR, "axis"}),
    "array of integers": (Int[np.ndarray, "..."], {"type", "dtype"}),
    "array of any library": (Shaped[Any, "b 3"], {"type", "rank", "axis"}),
    "optional": (Float[Tensor, "b 3"] | None, {*TENSOR, "axis"}),
    "optional square": (Int[Tensor, "n n"] | None, {*TENSOR, "axis"}),
    "optional anything": (Shaped[Tensor, "..."] | None, {"type"}),
    "union of ranks": (Float32[Tensor, "a"] | Float32[Tensor, "a b"], TENSOR),
    "union of dtypes": (Float32[Tensor, "..."] | Int[Tensor, "..."], {"type", "dtype"}),
    "union of shapes": (Float32[Tensor, "3"] | Int[Tensor, "..."], {*TENSOR, "axis"}),
    "wide and narrow": (Float32[Tensor, "a a"] | Float32[Tensor, "a"] | None, {*TENSOR, "axis"}),
    "tensor or number": (Float32[Tensor, "a"] | int | str, {*TENSOR, "hint"}),
    "list": (list[Float[Tensor, "b"]], {*TENSOR, "axis"}),
    "list of any lengths": (list[Float[Tensor, "_"]], TENSOR),
    "sequence": (collections.abc.Sequence[Row], {*TENSOR, "axis"}),
    "list of optional": (list[Row | None], {*TENSOR, "axis"}),
    "list of lists": (list[list[Row]], {*TENSOR, "axis"}),
    "tuple of any length": (tuple[Row, ...], {*TENSOR, "axis"}),
    "tuple": (tuple[Row, Row], {*TENSOR, "axis", "length"}),
    "tuple of ranks": (tuple[Row, Grid], {*TENSOR, "axis", "length"}),
    "tuple with an expression": (tuple[Row, Float32[Tensor, "b+1"]], {*TENSOR, "axis", "length"}),
    "tuple with an option": (tuple[Row | None, Grid], {*TENSOR, "axis", "length"}),
    "tuple of one": (tuple[Float32[Tensor, "..."]], {"type", "dtype", "length"}),
    "tuple with a number": (tuple[Row, int], {*TENSOR, "hint", "length"}),
    "tuple of variadics": (tuple[Float32[Tensor, "*b"], Float32[Tensor, "*b"]], {"type", "dtype", "axis", "length"}),
    "dict": (dict[str, Row], {*TENSOR, "axis", "hint"}),
    "mapping": (collections.abc.Mapping[str, Row], {*TENSOR, "axis", "hint"}),
    "ordered dict": (collections.OrderedDict[str, Row], {*TENSOR, "axis", "hint"}),
    "default dict": (collections.defaultdict[str, Row], {*TENSOR, "axis", "hint"}),
    "typed dict": (Required, {*TENSOR, "key"}),
    "typed dict without duties": (Total, {*TENSOR, "axis"}),
    "typed dict, partly": (Partly, {*TENSOR, "axis", "key"}),
    "dataclass": (Sample, {*TENSOR, "axis"}),
    "dataclass of ranks": (Linear, {*TENSOR, "axis"}),
    "recursive dataclass": (Node, {*TENSOR, "axis"}),
    "list of dataclasses": (list[Linear], {*TENSOR, "axis"}),
    "named tuple": (Pair, TENSOR),
    "deep": (dict[str, list[tuple[Row, int]]], {*TENSOR, "axis", "hint", "length"}),
    "annotated": (Annotated[Row, "documented"], TENSOR),
    "type variable": (Bound, TENSOR),
    "string": ('Float32[Tensor, "b 3"]', {*TENSOR, "axis"}),
    "none": (None, {"type"}),
    "int": (int, {"hint"}),
    "optional int": (int | None, {"hint"}),
    "literal": (Literal["a", "b"], {"hint"}),
    "enum": (Color, {"hint"}),
    "list of numbers": (list[int], {"hint"}),
    "set of strings": (set[str], {"hint"}),
    "deque": (collections.deque[Row], {"type", "dtype", "rank", "axis"}),
    "iterator": (collections.abc.Iterator[Row], {"hint"}),
    "keys": (dict[int, Row], {"type", "dtype", "rank", "axis", "hint"}),
    "tuple of numbers": (tuple[int, str], {"hint"}),
    "callable": (collections.abc.Callable[[int], int], {"hint"}),
}  # fmt: skip
EVERY = pytest.mark.parametrize("name", ANNOTATIONS)


@functools.cache
def breaches_of(name):
    """Some breaches of an annotation of the table, for several laws."""
    return drawn(violations_of(ANNOTATIONS[name][0]), 25)


def is_one_fault(breach, annotation):
    assert isinstance(breach, Breach)
    assert breach.error is ERRORS[breach.kind]
    with pytest.raises(breach.error) as caught:
        check(breach.value, annotation, mode="strict")
    error = caught.value
    assert type(error) is breach.error
    assert len(error.violations) == 1
    assert error.violations[0] == breach.says
    assert breach.says in str(error)
    assert error.argument.startswith("value")


@pytest.mark.thin(5)
@EVERY
def test_strict_mode_finds_exactly_what_the_breach_says(name):
    annotation, kinds = ANNOTATIONS[name]
    for breach in breaches_of(name):
        is_one_fault(breach, annotation)
        assert breach.kind in kinds


@pytest.mark.slow
@EVERY
def test_every_kind_of_breach_is_reached(name):
    annotation, kinds = ANNOTATIONS[name]
    reached = set()

    def law(breach):
        is_one_fault(breach, annotation)
        reached.add(breach.kind)

    holds(violations_of(annotation), law, 500)
    assert reached == kinds


QUICKLY = ["fixed and named", "symbolic", "array", "tuple of ranks"]


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", QUICKLY)
def test_every_kind_is_reached_among_a_hundred(name):
    annotation, kinds = ANNOTATIONS[name]
    assert {breach.kind for breach in drawn(violations_of(annotation), 100)} == kinds


def of_tensors_alone(annotation):
    """What jaxtyping and beartype judge without a call: no container, and no name that two tensors share."""
    options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return any(isinstance(option, type) and issubclass(option, AbstractArray) for option in options)


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", [name for name, (hint, _) in ANNOTATIONS.items() if of_tensors_alone(hint)])
def test_jaxtyping_refuses_every_breach_too(name):
    annotation, _ = ANNOTATIONS[name]
    for breach in breaches_of(name):
        assert not is_bearable(breach.value, annotation, conf=BeartypeConf(is_pep484_tower=True))
        assert not isinstance(annotation, type) or not isinstance(breach.value, annotation)


@pytest.mark.thin(6)
@EVERY
@pytest.mark.filterwarnings("ignore:enforce reads annotations")  # some of these have no tensor
def test_an_enforced_function_refuses_every_breach(name):
    """The generated wrapper and the reference checker are two programs."""

    def fn(value):
        raise AssertionError("the body ran")

    fn.__annotations__ = {"value": ANNOTATIONS[name][0]}
    strict = enforce(fn, mode="strict")
    for breach in breaches_of(name):
        with pytest.raises(breach.error) as caught:
            strict(breach.value)
        assert caught.value.violations == (breach.says,)


@pytest.mark.thin(4)
@EVERY
def test_lenient_mode_lets_no_breach_pass_in_silence(name):
    annotation, _ = ANNOTATIONS[name]
    for breach in breaches_of(name):
        dtypeguard.reset_casts()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                repaired = check(breach.value, annotation)
            except (CastError, ShapeError, HintError):
                continue
        assert breach.kind in ("dtype", "type")
        assert [w.category for w in caught if issubclass(w.category, CastWarning)] == [CastWarning]
        assert len(dtypeguard.casts()) == 1
        check(repaired, annotation, mode="strict")


# ---------------------------------------------------------------- the rest of the value is right


def steps_of(value):
    """By how a path goes on, `[0]` or `.x`: what puts something else there, and what is there."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {f".{k}": (lambda new, k=k: value._replace(**{k: new}), getattr(value, k)) for k in value._fields}
    if isinstance(value, list | tuple):
        whole, kind = [*value], type(value)
        return {f"[{n}]": (lambda new, n=n: kind([*whole[:n], new, *whole[n + 1 :]]), v) for n, v in enumerate(value)}
    if isinstance(value, dict):
        return {f"[{k!r}]": (lambda new, k=k: {**value, k: new}, v) for k, v in value.items()}
    names = [field.name for field in dataclasses.fields(value)]
    return {f".{k}": (lambda new, k=k: dataclasses.replace(value, **{k: new}), getattr(value, k)) for k in names}


def replaced(value, path, new):
    """The value with something else at a path such as `[0]['a'].x`."""
    if not path:
        return new
    step, (put, part) = next(item for item in steps_of(value).items() if path.startswith(item[0]))
    return put(replaced(part, path.removeprefix(step), new))


NESTED = [
    "list", "sequence", "list of lists", "tuple of any length", "tuple", "tuple of ranks", "tuple with a number",
    "dict", "typed dict", "typed dict, partly", "dataclass", "dataclass of ranks", "recursive dataclass",
    "list of dataclasses", "named tuple", "deep",
]  # fmt: skip


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", NESTED)
def test_with_the_wrong_dtype_mended_the_value_is_accepted(name):
    annotation, _ = ANNOTATIONS[name]
    seen = []

    def law(breach):
        if breach.kind == "dtype":
            error = refusal(breach.value, annotation)
            path = error.argument.removeprefix("value")
            odd = eval(f"value{path}", {"value": breach.value})
            right = torch.zeros(odd.shape, dtype=error.expected)
            assert odd.dtype is error.actual
            check(replaced(breach.value, path, right), annotation, mode="strict")
            seen.append(path)

    holds(violations_of(annotation), law, 100)
    assert seen


@pytest.mark.parametrize("annotation", [Required, Partly], ids=lambda cls: cls.__name__)
def test_with_the_missing_key_put_in_the_value_is_accepted(annotation):
    seen = []

    def law(breach):
        if breach.kind == "key":
            assert "has no 'a'" in breach.says or "has no 'n'" in breach.says
            length = len(breach.value["b"]) if "b" in breach.value else 1
            check({"a": torch.ones(length), "n": 0, **breach.value}, annotation, mode="strict")
            seen.append(breach)

    holds(violations_of(annotation), law, 40)
    assert seen


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


@pytest.mark.slow
def test_a_wrong_dtype_may_be_any_other_dtype():
    breaches = [b for b in drawn(violations_of(Float32[Tensor, ""]), 1000) if b.kind == "dtype"]
    dtypes = {breach.value.dtype for breach in breaches}
    assert dtypes >= {torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64}
    assert torch.float32 not in dtypes


def test_a_wrong_rank_is_higher_and_lower():
    def ranks(annotation):
        return {b.value.dim() for b in drawn(violations_of(annotation), 200) if b.kind == "rank"}

    assert ranks(Grid) >= {0, 1, 3}
    assert ranks(Float32[Tensor, ""]) == {1}
    assert ranks(Float32[Tensor, "*b c d"]) == {0, 1}


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "name", ["tuple", "tuple of ranks", "dataclass of ranks", "list", "dict", "tuple of variadics"]
)
def test_a_wrong_axis_names_the_axis_and_its_other_owner(name):
    annotation, _ = ANNOTATIONS[name]
    seen = [b for b in drawn(violations_of(annotation), 60) if b.kind == "axis"]
    assert seen
    assert any(" in `value" in breach.says for breach in seen)


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


# ---------------------------------------------------------------- options


def test_axes_are_what_the_right_parts_have():
    def law(breach):
        if breach.kind == "dtype":
            assert breach.value.shape == (4, 3)
        if breach.kind == "axis":
            assert breach.value.shape[0] == 4

    holds(violations_of(Float32[Tensor, "b 3"], axes={"b": 4}), law, 100)


def test_axes_may_be_strategies():
    sizes = {
        b.value.shape[0]
        for b in drawn(violations_of(Float32[Tensor, "b 3"], axes={"b": st.sampled_from((5, 6))}), 100)
        if b.kind in ("dtype", "axis")
    }
    assert sizes == {5, 6}


def test_tensors_are_made_on_a_device():
    def law(breach):
        assert not isinstance(breach.value, Tensor) or breach.value.is_meta
        is_one_fault(breach, Float[Tensor, "b 3"])

    holds(violations_of(Float[Tensor, "b 3"], device="meta"), law)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (Any, "nothing breaks Any"),
        (object, "nothing breaks object"),
        (Row | Any, "nothing breaks"),
        (TypeVar("T"), "nothing breaks T"),
        ("Any", "nothing breaks"),
        ("Float32[Tensor, 'a,b']", "a,b"),
        ("Float32[Tensor, 'a+']", "a+"),
        ("Nowhere", "Nowhere"),
        (Float32[Tensor, "-1"], "-1"),
        (Float32[Tensor, "?a"], "?a"),
        (Float32[Tensor, "a+1 a"], "not bound yet"),
        (Float32[Tensor, "a -a-1"], "no sizes of its axes"),
        (Float32[Tensor, "{n}"], "use inputs_for"),
        (Float32, "alone is no annotation"),
        (torch.float32, "alone is no annotation"),
        (torch.ones(2), "a tensor is no annotation"),
    ],
    ids=str,
)
def test_what_cannot_be_broken_is_refused_at_the_call(annotation, said):
    with pytest.raises(AnnotationError) as caught:
        violations_of(annotation)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"axes": {"d": 3}}, ValueError, "no axis 'd'; its named axes are b, c"),
        ({"axes": {"b": -1}}, ValueError, "b=-1"),
        ({"device": "gpu"}, ValueError, "device='gpu'"),
    ],
    ids=str,
)
def test_unknown_options_are_refused_at_the_call(options, error, said):
    with pytest.raises(error) as caught:
        violations_of(Grid, **options)
    assert said in str(caught.value)


# ---------------------------------------------------------------- as hypothesis sees it

SMALLEST = [
    (Grid, "dtype", "tensor([[0.]], dtype=torch.float64)"),
    (Grid, "rank", "tensor(0.)"),
    (Grid, "type", "None"),
    (Float[Tensor, "b 3"], "dtype", "tensor([[0, 0, 0]])"),
    (Float[Tensor, "b 3"], "axis", "tensor([[0.]])"),
    (Float32[Tensor, "n n"], "axis", "tensor([[0.], [0.]])"),
    (Float32[Tensor, "a a+1"], "axis", "tensor([[0.]])"),
    (list[Row], "type", "None"),
    (list[Row], "dtype", "[tensor([0.], dtype=torch.float64)]"),
    (list[Row], "rank", "[tensor(0.)]"),
    (list[Row], "axis", "[tensor([0.]), tensor([0., 0.])]"),
    (tuple[Row, Row], "axis", "(tensor([0.]), tensor([0., 0.]))"),
    (tuple[Row, int], "length", "(tensor([0.]),)"),
    (dict[str, Row], "dtype", "{'': tensor([0.], dtype=torch.float64)}"),
    (Required, "key", "{'n': 0}"),
    (Required, "dtype", "{'a': tensor([0.], dtype=torch.float64), 'n': 0}"),
    (Sample, "dtype", "Sample(x=tensor([0.], dtype=torch.float64), y=tensor([0.]), n=0)"),
    (int, "hint", "None"),
    (Row | None, "dtype", "tensor([0.], dtype=torch.float64)"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("annotation", "kind", "smallest"), SMALLEST, ids=str)
def test_a_breach_shrinks_to_something_small(annotation, kind, smallest):
    thorough = settings(max_examples=500, database=None, derandomize=True)
    found = find(violations_of(annotation), lambda breach: breach.kind == kind, settings=thorough)
    assert " ".join(str(found.value).split()) == smallest
    is_one_fault(found, annotation)


@pytest.mark.slow
@pytest.mark.parametrize("n", range(3))
@pytest.mark.parametrize("annotation", [Grid, tuple[Row, Row], list[Row], Sample], ids=str)
def test_a_test_that_always_fails_is_shown_a_small_breach(annotation, n):
    shown = []

    @seed(n)
    @settings(max_examples=50, deadline=None, database=None)
    @given(violations_of(annotation))
    def test(breach):
        shown.append(breach)
        raise AssertionError

    with pytest.raises(AssertionError):
        test()
    assert len(str(shown[-1].value)) < 120


def test_a_kind_that_is_not_there_is_never_found():
    few = settings(max_examples=100, database=None, derandomize=True)
    with pytest.raises(NoSuchExample):
        find(violations_of(Grid), lambda breach: breach.kind == "key", settings=few)


def test_a_breach_is_a_record_that_cannot_be_changed():
    breach = Breach(None, "type", "argument `value` is None, the annotation wants a Tensor", HintError)
    with pytest.raises(dataclasses.FrozenInstanceError):
        breach.kind = "dtype"


def test_a_strategy_shows_in_one_short_line():
    for annotation in (Grid, list[Row], Required, int | None):
        assert len(repr(violations_of(annotation))) < 150
        assert "\n" not in repr(violations_of(annotation))
    assert 'Float32[Tensor, "b c"]' in repr(violations_of(Grid))


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


@pytest.mark.parametrize("annotation", [tuple[Row, list[int]], list[int], Row], ids=str)
def test_nothing_global_is_changed(annotation):
    strategy = violations_of(annotation)
    rng, states = torch.get_rng_state(), set()
    holds(strategy, lambda breach: states.add(hash(random.getstate())), 40)
    assert len(states) == 1
    assert torch.equal(torch.get_rng_state(), rng)
    assert dtypeguard.casts() == []
    assert dtypeguard.get_mode() == "lenient"


@pytest.mark.thin(4)
@pytest.mark.parametrize("mode", ["strict", "lenient", "warn", "off"])
def test_the_mode_makes_no_difference_to_what_is_drawn(mode):
    usual = [breach.says for breach in drawn(violations_of(tuple[Row, Grid]), 30)]
    with dtypeguard.mode(mode):
        assert [breach.says for breach in drawn(violations_of(tuple[Row, Grid]), 30)] == usual


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


def both_hold(annotation, examples):
    """Values that keep it and values that break it; False where nothing is drawn because nothing fits."""
    try:
        right = tensors(annotation)
    except AnnotationError as error:
        reason = str(error).partition(": ")[2]
        with pytest.raises(AnnotationError, match=re.escape(reason)):
            violations_of(annotation)
        return False

    def keeps(value):
        check(value, annotation, mode="strict")
        assert isinstance(value, annotation)

    def breaks(breach):
        is_one_fault(breach, annotation)
        assert not isinstance(breach.value, annotation)

    holds(right, keeps, examples)
    holds(violations_of(annotation), breaks, examples)
    return True


def test_random_annotations_have_breaches_or_are_refused():
    kept = [both_hold(annotation, 6) for annotation in random_annotations(40, 1)]
    assert sum(kept) > 12


@pytest.mark.slow
@pytest.mark.parametrize("n", range(2, 6))
def test_many_random_annotations_have_breaches_or_are_refused(n):
    kept = [both_hold(annotation, 20) for annotation in random_annotations(250, n)]
    assert sum(kept) > 100
    assert not all(kept)


@pytest.mark.slow
@pytest.mark.parametrize("annotation", [Grid, tuple[Row, Grid], Required, list[Linear], Row | None], ids=str)
def test_health_checks_stay_quiet_over_thousands_of_breaches(annotation):
    assert len(drawn(violations_of(annotation), 3000)) > 2000
