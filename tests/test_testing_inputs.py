"""`testing.inputs_for` draws all arguments of a call, and every call that it draws keeps the contract."""

import asyncio
import collections.abc
import copy
import dataclasses
import enum
import functools
import inspect
import math
import random
import re
import types
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, ParamSpec, TypeVar

import numpy as np
import postponed
import pytest
import torch
import torch.nn.functional as F
from beartype import BeartypeConf, beartype
from hypothesis import Phase, find, given, seed, settings
from hypothesis import strategies as st
from jaxtyping import Bool, Float, Float32, Float64, Int, Int64, Num, Shaped, jaxtyped
from torch import Tensor, nn
from typing_extensions import TypedDict

import dtypeguard
from dtypeguard import AnnotationError, DtypeError, GuardedModule, enforce, guard
from dtypeguard.testing import inputs_for

Row = Float32[Tensor, "n"]
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
FLOATS = (F16, BF16, F32, F64)
LAYOUTS = ["contiguous", "transposed", "strided", "offset", "expanded", "channels_last"]


UNEXPLAINED = (Phase.generate, Phase.shrink)  # explanations are found by tracing, which is slow


def holds(strategy, law, examples=40):
    """Every value that is drawn satisfies a law."""

    @settings(max_examples=examples, deadline=None, database=None, phases=UNEXPLAINED)
    @given(strategy)
    def test(value):
        law(value)

    test()


def drawn(strategy, examples=60):
    """The same values in every run."""
    values = []

    @settings(max_examples=examples, deadline=None, database=None, phases=UNEXPLAINED, derandomize=True)
    @given(strategy)
    def test(value):
        values.append(value)

    test()
    return values


def reached(strategy, what, examples=60):
    return {what(value) for value in drawn(strategy, examples)}


def call(fn, inputs):
    """Call a function with what was drawn, and run what it returns."""
    result = fn(*inputs.args, **inputs.kwargs)
    if inspect.iscoroutine(result):
        return asyncio.run(result)
    if inspect.isasyncgen(result):
        return asyncio.run(anext(result))
    return list(result) if inspect.isgenerator(result) else result


def named(value):
    """Without addresses, which differ from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def tensors_of(inputs):
    """All tensors among the arguments, at any depth."""
    found = []

    def walk(value):
        if isinstance(value, Tensor):
            found.append(value)
        elif dataclasses.is_dataclass(value):
            walk([getattr(value, field.name) for field in dataclasses.fields(value)])
        elif isinstance(value, Mapping):
            walk(list(value.values()))
        elif isinstance(value, list | tuple):
            for item in value:
                walk(item)

    walk(inputs.arguments)
    return found


def refusal(fn, error=AnnotationError, **options):
    with pytest.raises(error) as caught:
        inputs_for(fn, **options)
    return str(caught.value)


# ---------------------------------------------------------------- one table of functions


def two_tensors(x: Float32[Tensor, "b c"], y: Float32[Tensor, "c"]): ...


@enforce
def enforced(x: Float32[Tensor, "b c"], y: Float32[Tensor, "c"]): ...


def keyword_only(*, x: Row, y: Row): ...


def positional_only(x: Row, y: Row, /): ...


def all_kinds(x: Row, /, n: int, *rest: Row, y: Row, flag: bool = True, **more: Row): ...


def defaults(x: Row | None = None, n: int = 3, y: Row | None = None): ...


def defaults_before_rest(x: Row | None = None, *rest: Row, y: Row | None = None): ...


def positional_only_defaults(x: Row | None = None, y: Row | None = None, /, z: Row | None = None, *rest: Row): ...


def rest_alone(*rows: Row): ...


def keywords_alone(**rows: Row): ...


def nothing(): ...


async def coroutine(x: Row, y: Row): ...


def generator(x: Row, y: Row) -> Iterator[Row]:
    yield x
    yield y


async def async_generator(x: Row, y: Row) -> AsyncIterator[Row]:
    yield x


def through(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


@through
def wrapped(x: Row, y: Row, *, z: Row): ...


@through
@enforce
def wrapped_around_enforced(x: Row, y: Row, *, z: Row): ...


class Holder:
    width = 3

    @staticmethod
    def static(x: Row, y: Row): ...

    @classmethod
    def of_the_class(cls, x: Row, y: Row): ...

    def method(self, x: Row, y: Row): ...

    @enforce
    def enforced_method(self, x: Row, y: Row): ...

    @enforce
    def of_its_width(self, x: Float32[Tensor, "n {self.width}"]): ...

    def __call__(self, x: Row, y: Row): ...


annotated_lambda = types.FunctionType((lambda x, y: None).__code__, globals(), "annotated_lambda")
annotated_lambda.__annotations__ = {"x": Row, "y": Row}


def in_strings(x: "Row", y: 'Float32[Tensor, "n"]'): ...


def of_what_is_below(x: "Below", y: "Below"): ...


Below = Row


def of_local_names():
    Local = Row

    @dataclass
    class Batch:
        x: Local
        y: Local

    def inner(batch: Batch, z: Local): ...

    return inner


def enforced_before_a_local_name():
    Local = Row

    @enforce
    def inner(x: "Local", y: "Later"):
        assert Later is Row

    Later = Row
    return inner


Named = NewType("Named", int)
Bound = TypeVar("Bound", bound=Row)
Parameters = ParamSpec("Parameters")


def of_wrapped_hints(x: Annotated[Row, "documented"], y: Bound, z: Bound, n: Named): ...


@enforce(anchor="pred")
def anchored(pred: Float[Tensor, "b"], target: Float[Tensor, "b"]): ...


@enforce(anchor="pred")
def anchored_behind(target: Float[Tensor, "b"], weight: Float[Tensor, "b"] | None, *, pred: Float[Tensor, "b"]): ...


def symbolic(x: Float[Tensor, "a b"], y: Float[Tensor, "a+b"], z: Float[Tensor, "a*b a-b"]): ...


def symbolic_over_many(
    x: Float[Tensor, "a a+1"], y: Float[Tensor, "a*a b"], z: Float[Tensor, "a+b b//2"], u: Float[Tensor, "min(a,b)"]
): ...


def convolution(
    x: Float[Tensor, "b c h w"], weight: Float[Tensor, "o c kh kw"], y: Float[Tensor, "b o h-kh+1 w-kw+1"]
): ...


def far_apart(x: Float[Tensor, "a"], y: Float[Tensor, "b"], z: Float[Tensor, "a*100-b*37"]): ...


def of_an_int(n: int, x: Float[Tensor, "{n}"], y: Float[Tensor, "{n}+1 {2*n}"]): ...


def of_an_int_behind(x: Float[Tensor, "{n}"], y: Float[Tensor, "b {n}-b"], n: int): ...


def of_a_default(x: Row, n: Literal[2, 4] = 2, y: Float[Tensor, "{n}"] | None = None): ...


def of_a_length(names: list[str], x: Float[Tensor, "b {len(names)}"]): ...


def of_a_shape(x: Float[Tensor, "b"], y: Float[Tensor, "{x.shape[0]}"]): ...


def of_a_shape_behind(y: Float[Tensor, "{x.shape[0]}"], x: Float[Tensor, "b"]): ...


def broadcast(x: Float[Tensor, "#b #c"], y: Float[Tensor, "#b #c"], z: Float[Tensor, "b c"]): ...


def broadcast_and_symbolic(x: Float[Tensor, "#b"], y: Float[Tensor, "#b"], z: Float[Tensor, "b+1"]): ...


def variadic(x: Float[Tensor, "*b c"], y: Float[Tensor, "*b"], z: Float[Tensor, "... c"]): ...


def variadic_broadcast(x: Float[Tensor, "*#b c"], y: Float[Tensor, "*#b"], z: list[Float[Tensor, "*#b c"]]): ...


def repeated(x: Float[Tensor, "n n"], y: Int[Tensor, "n n n"]): ...


def fixed(x: Float[Tensor, "3 0"], y: Float[Tensor, "1 _ 2"]): ...


class Pair(NamedTuple):
    x: Row
    y: Row


class Batch(TypedDict):
    x: Row
    n: int
    mask: NotRequired[Bool[Tensor, "n"]]


@dataclass
class Sample:
    x: Row
    y: Float32[Tensor, "n m"]
    label: str = ""


def containers(x: list[Float[Tensor, "b d"]], y: dict[str, Int[Tensor, "b"]], z: tuple[Int64[Tensor, "b"], ...]): ...


def abstract_containers(x: Sequence[Row], y: Mapping[str, Row], z: collections.abc.Collection[Row]): ...


def records(pair: Pair, pairs: list[Pair], batch: Batch, sample: Sample): ...


def nested(x: dict[str, list[tuple[Row, int]]], y: list[dict[str, Row | None]], z: Row): ...


def recursive(node: postponed.Node): ...


def mixed_tuples(x: tuple[Row, int, str], y: tuple[Row, Any], z: tuple[()], w: tuple): ...


def optional(x: Row | None, y: Row | None = None, z: list[Row] | None = None): ...


def unions(x: Float[Tensor, "a"] | Int[Tensor, "a b"], y: Int[Tensor, "b"] | Float[Tensor, "a"]): ...


def union_of_one_rank(x: Row | Float32[Tensor, "m"], y: Row | None, z: Float32[Tensor, "m"]): ...


def union_of_two_orders(x: Float32[Tensor, "a b"] | Float32[Tensor, "b a"], y: Float32[Tensor, "a"]): ...


def union_of_containers(x: list[Row] | Row | None, y: dict[str, Row | None], z: tuple[Row | Int[Tensor, "n"], ...]): ...


def symbolic_over_a_union(x: Float32[Tensor, "a"] | Float32[Tensor, "b"], y: Float32[Tensor, "a+1"]): ...


def symbolic_over_an_optional(x: Float32[Tensor, "a"] | None, y: Float32[Tensor, "a+1"]): ...


class Reduction(enum.Enum):
    MEAN = "mean"
    SUM = "sum"


class Schedule:
    def __init__(self, steps):
        self.steps = steps


st.register_type_strategy(Schedule, st.builds(Schedule, st.integers(1, 9)))


def hints_without_tensors(
    x: Row,
    n: int,
    mode: Literal["a", "b"],
    reduction: Reduction,
    activation: Callable[[int], int],
    name: str | None,
    sizes: Sequence[int],
    schedule: Schedule,
): ...


def hints_in_containers(
    x: Row, a: list[int], b: set[str], c: dict[str, float], d: tuple[int, ...], e: frozenset[int]
): ...


def hints_of_torch(
    x: Row, dtype: torch.dtype, device: torch.device | None, size: torch.Size, generator: torch.Generator | None = None
): ...


def rarer_hints_of_torch(x: Row, memory: torch.memory_format, layout: torch.layout | None): ...


def tensors_of_any_kind(x: Tensor, y: torch.LongTensor, z: Num[Tensor, "..."], a: Shaped[Any, "n"]): ...


def arrays(x: Float32[np.ndarray, "a b"], y: Int64[np.ndarray, "b"], z: Float32[Tensor, "a"]): ...


def parameters(x: nn.Parameter, y: Float32[nn.Parameter, "a"]): ...


def ten_arguments(
    a: Float[Tensor, "a"], b: Float[Tensor, "a b"], c: Float[Tensor, "b c"], d: Float[Tensor, "c d"],
    e: Float[Tensor, "d e"], f: Float[Tensor, "e f"], g: Float[Tensor, "f g"], h: Float[Tensor, "g h"],
    i: Float[Tensor, "h i"], j: Float[Tensor, "i a"],
): ...  # fmt: skip


FUNCTIONS = {
    getattr(fn, "__qualname__", "Holder()").rpartition("<locals>.")[2]: fn
    for fn in [
        two_tensors, enforced, keyword_only, positional_only, all_kinds, defaults, defaults_before_rest,
        positional_only_defaults, rest_alone, keywords_alone, nothing, coroutine, generator, async_generator, wrapped,
        wrapped_around_enforced, Holder.static, Holder.of_the_class, Holder().method, Holder().enforced_method,
        Holder().of_its_width, Holder(), annotated_lambda, in_strings, of_what_is_below, of_wrapped_hints, anchored,
        anchored_behind, symbolic, symbolic_over_many, convolution, far_apart, of_an_int, of_an_int_behind,
        of_a_default, of_a_length, of_a_shape, of_a_shape_behind, broadcast, broadcast_and_symbolic, variadic,
        variadic_broadcast, repeated, fixed, containers, abstract_containers, records, nested, recursive, mixed_tuples,
        optional, unions, union_of_one_rank, union_of_two_orders, union_of_containers, symbolic_over_a_union,
        symbolic_over_an_optional, hints_without_tensors, hints_in_containers, hints_of_torch, rarer_hints_of_torch,
        tensors_of_any_kind, arrays, parameters, ten_arguments,
    ]
}  # fmt: skip
FUNCTIONS["local names"] = of_local_names()
FUNCTIONS["enforced before a local name"] = enforced_before_a_local_name()
FUNCTIONS["postponed"] = postponed.function
FUNCTIONS["postponed forward reference"] = postponed.forward_reference
FUNCTIONS["postponed method"] = postponed.Plain().method
FUNCTIONS["postponed generator"] = postponed.generator
FUNCTIONS["postponed async generator"] = postponed.stream
EVERY_FUNCTION = pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=FUNCTIONS)


def held(fn):
    """The same callable, enforced."""
    if inspect.ismethod(fn):
        return types.MethodType(held(fn.__func__), fn.__self__)
    if not inspect.isfunction(fn):
        return types.MethodType(held(type(fn).__call__), fn)
    return fn if "dtypeguard" in fn.__code__.co_filename else enforce(fn)


def enforce_accepts(fn, examples):
    strict = held(fn)

    def law(inputs):
        call(strict, inputs)

    with dtypeguard.mode("strict"):
        holds(inputs_for(fn), law, examples)
    assert dtypeguard.casts() == []


@pytest.mark.thin(4)
@pytest.mark.filterwarnings("ignore:enforce reads annotations")  # some have none
@EVERY_FUNCTION
def test_the_enforced_function_accepts_what_is_drawn(fn):
    enforce_accepts(fn, 8)


@pytest.mark.filterwarnings("ignore:enforce reads annotations")  # some have none
@pytest.mark.slow
@EVERY_FUNCTION
def test_the_enforced_function_accepts_every_one_of_many_inputs(fn):
    enforce_accepts(fn, 400)


# beartype and jaxtyping cannot do these: they leave the first argument of a method out, evaluate no name that is local,
# check a generator's own type, or know no array type but tensors.
NOT_FOR_JAXTYPING = {"enforced before a local name", "postponed method", "recursive"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::beartype.roar.BeartypeDecorHintPep585DeprecationWarning")
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in NOT_FOR_JAXTYPING])
def test_jaxtyping_and_beartype_accept_every_input_too(name):
    fn = FUNCTIONS[name]
    before = ()
    if not inspect.isfunction(fn):
        fn = fn if inspect.ismethod(fn) else fn.__call__
        fn, before = fn.__func__, (fn.__self__,)
    theirs = jaxtyped(inspect.unwrap(fn), typechecker=beartype(conf=BeartypeConf(is_pep484_tower=True)))
    holds(inputs_for(FUNCTIONS[name]), lambda inputs: call(functools.partial(theirs, *before), inputs), 200)


OF_EVERY_KIND = [
    keyword_only, positional_only, all_kinds, defaults, defaults_before_rest, positional_only_defaults, rest_alone,
    keywords_alone, nothing, wrapped, Holder.static, Holder().method, of_a_default, hints_of_torch,
]  # fmt: skip


@pytest.mark.parametrize("fn", OF_EVERY_KIND, ids=lambda fn: fn.__name__)
def test_python_binds_the_call_to_the_same_arguments(fn):
    """The arguments reach the parameters that they were drawn for."""
    signature = inspect.signature(fn)

    def law(inputs):
        assert isinstance(inputs, inspect.BoundArguments)
        assert inputs.signature == signature
        assert [name for name in signature.parameters if name in inputs.arguments] == [*inputs.arguments]
        bound = signature.bind(*inputs.args, **inputs.kwargs).arguments
        assert [*bound] == [*inputs.arguments]
        for name, value in bound.items():
            mine = inputs.arguments[name]
            if isinstance(value, tuple) and name == "rest":
                assert all(a is b for a, b in zip(value, mine, strict=True))
            elif name in ("more", "rows"):
                assert len(value) == len(mine)
            else:
                assert value is mine

    holds(inputs_for(fn), law, 6)


def test_what_is_drawn_for_one_function_breaks_another():
    """The laws above can fail."""

    def doubles(x: Float64[Tensor, "b c"], y: Float32[Tensor, "c"]): ...

    def law(inputs):
        with pytest.raises(DtypeError, match="argument `x` is float32") as caught:
            enforce(doubles, mode="strict")(*inputs.args, **inputs.kwargs)
        assert caught.value.argument == "x"

    holds(inputs_for(two_tensors), law, 20)


def test_what_is_drawn_with_a_wrong_dtype_is_repaired_in_lenient_mode():
    @enforce
    def doubles(x: Float64[Tensor, "b"]):
        assert x.dtype is F64

    def law(inputs):
        dtypeguard.reset_casts()
        with pytest.warns(dtypeguard.CastWarning, match="doubles: `x` was cast from float32 to float64"):
            doubles(*inputs.args)
        assert [(c.argument, c.from_dtype, c.to_dtype) for c in dtypeguard.casts()] == [("x", F32, F64)]

    def singles(x: Float32[Tensor, "b"]): ...

    holds(inputs_for(singles), law, 20)


# ---------------------------------------------------------------- what the arguments are


def test_arguments_go_where_their_kind_wants_them():
    seen = set()
    for inputs in drawn(inputs_for(all_kinds), 150):
        first, n, *rest = inputs.args
        assert inputs.arguments["x"] is first
        assert inputs.arguments["n"] == n
        assert inputs.arguments.get("rest", ()) == tuple(rest)
        assert {"y"} <= set(inputs.kwargs) <= {"y", "flag", *inputs.arguments.get("more", {})}
        seen.add((bool(rest), "flag" in inputs.arguments, bool(inputs.arguments.get("more"))))
    assert seen == {(a, b, c) for a in (False, True) for b in (False, True) for c in (False, True)}


def test_defaults_can_be_applied():
    def law(inputs):
        inputs.apply_defaults()
        assert [*inputs.arguments] == ["x", "n", "y"]

    holds(inputs_for(defaults), law, 30)


@pytest.mark.parametrize("name", ["x", "n", "y"])
def test_an_argument_with_a_default_is_given_at_times(name):
    assert reached(inputs_for(defaults), lambda inputs: name in inputs.arguments) == {False, True}


def test_what_stands_before_rest_is_given_when_rest_is():
    lengths = set()
    for inputs in drawn(inputs_for(defaults_before_rest), 100):
        assert "x" in inputs.arguments or "rest" not in inputs.arguments
        lengths.add(len(inputs.args))
    assert lengths >= {0, 1, 2, 3}


def test_unannotated_arguments_with_a_default_are_left_out():
    def fn(x: Row, scale=2.0, *, bias=None): ...

    assert reached(inputs_for(fn), lambda inputs: tuple(inputs.arguments)) == {("x",)}


def test_a_bound_method_has_no_self():
    for fn in (Holder().method, Holder().enforced_method, Holder()):
        assert reached(inputs_for(fn), lambda inputs: tuple(inputs.arguments), 10) == {("x", "y")}


def test_a_function_without_arguments_gets_none():
    assert [(i.args, i.kwargs) for i in drawn(inputs_for(nothing))] == [((), {})]


def test_changing_what_was_drawn_changes_no_later_draw():
    strategy = inputs_for(two_tensors, layout="contiguous")

    def shown(change):
        texts = []

        @settings(max_examples=50, deadline=None, database=None, derandomize=True)
        @given(strategy)
        def test(inputs):
            texts.append(str(inputs))
            change(inputs.arguments["x"])

        test()
        return texts

    assert shown(lambda x: x.fill_(7)) == shown(lambda x: None)


# ---------------------------------------------------------------- axes that agree


def sizes_of(fn, places_of):
    """The sizes of an axis that are drawn, by a function from inputs to all places where it stands."""
    seen = set()
    for inputs in drawn(inputs_for(fn), 35):
        places = set(places_of(inputs))
        assert len(places) <= 1
        seen |= places
    return seen


FIRST_AXES = [
    (two_tensors, lambda i: [i.args[0].shape[1], i.args[1].shape[0]]),
    (keyword_only, lambda i: [i.kwargs["x"].shape[0], i.kwargs["y"].shape[0]]),
    (rest_alone, lambda i: [len(row) for row in i.args]),
    (keywords_alone, lambda i: [len(row) for row in i.kwargs.values()]),
    (arrays, lambda i: [i.args[0].shape[1], i.args[1].shape[0]]),
    (variadic, lambda i: [i.args[0].shape[:-1], i.args[1].shape]),
    (ten_arguments, lambda i: [i.args[0].shape[0], i.args[1].shape[0], i.args[9].shape[1]]),
    *((fn, lambda i: [t.shape[0] for t in tensors_of(i)]) for fn in (containers, records, nested, recursive, optional)),
]


@pytest.mark.thin(4)
@pytest.mark.parametrize(("fn", "places"), FIRST_AXES, ids=[fn.__name__ for fn, _ in FIRST_AXES])
def test_a_name_is_one_size_in_all_arguments_and_many_in_all_draws(fn, places):
    assert len(sizes_of(fn, places)) >= 4


@pytest.mark.thin(3)
@pytest.mark.parametrize("fn", [two_tensors, broadcast, of_an_int], ids=lambda fn: fn.__name__)
def test_empty_and_single_axes_are_met(fn):
    sizes = {size for i in drawn(inputs_for(fn)) for tensor in tensors_of(i) for size in tensor.shape}
    assert {0, 1, 2, 3} <= sizes


def test_broadcast_names_meet_their_size_and_one():
    seen = set()
    for inputs in drawn(inputs_for(broadcast)):
        x, y, z = inputs.args
        assert torch.broadcast_shapes(x.shape, y.shape, z.shape) == z.shape
        seen.add((x.shape == z.shape, y.shape == z.shape))
    assert seen == {(False, False), (False, True), (True, False), (True, True)}


def test_broadcast_variadics_broadcast_together():
    for inputs in drawn(inputs_for(variadic_broadcast)):
        x, y, z = inputs.args
        torch.broadcast_shapes(x.shape[:-1], y.shape, *(one.shape[:-1] for one in z))


def test_expressions_are_computed_from_all_arguments():
    for inputs in drawn(inputs_for(symbolic)):
        x, y, z = inputs.args
        a, b = x.shape
        assert (y.shape, z.shape) == ((a + b,), (a * b, a - b))


@pytest.mark.thin(3)
@pytest.mark.parametrize("fn", [of_an_int, of_an_int_behind, of_a_length, of_a_shape, of_a_shape_behind])
def test_axes_that_ask_for_arguments_take_many_sizes(fn):
    widths = {
        of_an_int: lambda i: (i.arguments["n"], i.arguments["x"].shape[0]),
        of_an_int_behind: lambda i: (i.arguments["n"], i.arguments["x"].shape[0]),
        of_a_length: lambda i: (len(i.arguments["names"]), i.arguments["x"].shape[1]),
        of_a_shape: lambda i: (i.arguments["x"].shape[0], i.arguments["y"].shape[0]),
        of_a_shape_behind: lambda i: (i.arguments["x"].shape[0], i.arguments["y"].shape[0]),
    }
    pairs = reached(inputs_for(fn), widths[fn])
    assert all(wanted == size for wanted, size in pairs)
    assert len(pairs) >= 3


def test_every_option_of_a_union_is_drawn():
    kinds = reached(inputs_for(unions), lambda i: tuple(t.is_floating_point() for t in i.args))
    assert kinds == {(False, False), (False, True), (True, False), (True, True)}
    assert reached(inputs_for(optional), lambda i: i.arguments["x"] is None) == {False, True}


def test_the_first_option_that_fits_binds_its_axes():
    """A row is always `n`, whichever option it was drawn for, so `m` is free to be another size."""
    seen = set()
    for inputs in drawn(inputs_for(union_of_one_rank)):
        x, y, z = inputs.args
        assert y is None or len(y) == len(x)
        seen.add(len(z) == len(x))
    assert seen == {False, True}


# ---------------------------------------------------------------- the anchor and modules


@pytest.mark.parametrize("fn", [anchored, anchored_behind], ids=lambda fn: fn.__name__)
def test_arguments_follow_the_anchor_in_every_dtype_that_it_may_have(fn):
    seen = set()
    for inputs in drawn(inputs_for(fn)):
        dtypes = {tensor.dtype for tensor in tensors_of(inputs)}
        assert dtypes == {inputs.arguments["pred"].dtype}
        seen |= dtypes
    assert {F16, BF16, F32, F64} <= seen


class Annotated_(nn.Module):  # noqa: N801  (typing has the other one)
    def __init__(self, dim=3, dtype=F32):
        super().__init__()
        self.dim = dim
        self.fc = nn.Linear(dim, 2, dtype=dtype)

    def forward(
        self, x: Float[Tensor, "b {self.dim}"], bias: Float[Tensor, "b 2"] | None = None, *, ids: Int64[Tensor, "b"]
    ) -> Float[Tensor, "b 2"]:
        y = self.fc(x)
        return y if bias is None else y + bias


class Enforced(Annotated_):
    forward = enforce(Annotated_.forward)


class Derived(GuardedModule, Annotated_): ...


class Bare(nn.Module):
    """No parameters."""

    def forward(self, x: Float[Tensor, "b"], y: Int[Tensor, "b"]):
        return x


class Mixed(nn.Module):
    """A float32 scale on a bfloat16 body."""

    def __init__(self):
        super().__init__()
        self.body, self.scale = nn.Linear(3, 3, dtype=BF16), nn.Parameter(torch.ones(()))

    def forward(self, x: Float[Tensor, "b 3"]):
        return self.scale * x.float()


class Concrete(nn.Module):
    """Beside what follows the parameters, what does not."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3, dtype=BF16)

    def forward(self, x: Float[Tensor, "b 3"], t: Float32[Tensor, "b"], mask: Bool[Tensor, "b"]):
        return self.fc(x)


FORMS = {"plain": Annotated_, "enforced": Enforced, "GuardedModule": Derived}
FORMS |= {"guarded": lambda *args: guard(Annotated_(*args)), "guarded enforced": lambda *args: guard(Enforced(*args))}


@pytest.mark.thin(4)
@pytest.mark.parametrize("dtype", [BF16, F64], ids=named)
@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
@pytest.mark.usefixtures("strict")
def test_a_module_accepts_its_inputs_in_its_own_dtype(make, dtype):
    model = make(5, dtype)

    def law(inputs):
        assert inputs.arguments["x"].shape[1] == 5
        assert inputs.arguments["x"].dtype is dtype
        assert inputs.arguments["ids"].dtype is torch.int64
        assert model(*inputs.args, **inputs.kwargs).dtype is dtype

    holds(inputs_for(model), law, 15)
    assert dtypeguard.casts() == []


def test_guarded_enforced_or_neither_makes_no_difference():
    def told(model):
        return [[(t.dtype, t.shape, t.stride()) for t in tensors_of(i)] for i in drawn(inputs_for(model), 50)]

    first, *others = [told(make()) for make in FORMS.values()]
    assert all(other == first for other in others)


def test_a_guard_of_torchs_own_module_draws_tensors():
    for inputs in drawn(inputs_for(guard(nn.Linear(3, 2, dtype=BF16)))):
        assert isinstance(inputs.args[0], Tensor)
        assert inputs.args[0].dtype is BF16 or inputs.args[0].dtype not in FLOATS


def test_the_dtype_is_read_when_a_value_is_drawn():
    model = Annotated_()
    strategy = inputs_for(model)
    for dtype in (F32, F16, BF16, F64):
        model.to(dtype)
        assert reached(strategy, lambda i: i.arguments["x"].dtype, 20) == {dtype}


def test_the_device_is_that_of_the_parameters():
    model = Annotated_().to("meta")
    devices = reached(inputs_for(model), lambda i: {t.device.type for t in tensors_of(i)} == {"meta"}, 20)
    assert devices == {True}


def test_the_size_of_an_axis_is_read_from_the_module():
    model = Annotated_(4)
    strategy = inputs_for(model)
    assert reached(strategy, lambda i: i.arguments["x"].shape[1], 20) == {4}
    model.dim = 6
    assert reached(strategy, lambda i: i.arguments["x"].shape[1], 20) == {6}


def test_a_forward_is_as_good_as_its_module():
    model = Annotated_(dtype=BF16)
    for target in (model, model.forward):
        assert reached(inputs_for(target), lambda i: i.arguments["x"].dtype, 20) == {BF16}


@pytest.mark.thin(3)
@pytest.mark.parametrize("make", [Bare, Mixed, lambda: guard(Mixed())], ids=["bare", "mixed", "guarded mixed"])
@pytest.mark.usefixtures("strict")
def test_a_module_without_an_anchor_takes_every_floating_dtype(make):
    model = make()
    holds(inputs_for(model), lambda i: model(*i.args), 20)
    assert {F16, BF16, F32, F64} <= reached(inputs_for(model), lambda i: i.arguments["x"].dtype)


@pytest.mark.usefixtures("strict")
def test_what_an_annotation_fixes_does_not_follow_the_parameters():
    model = enforce(Concrete)()

    def law(inputs):
        assert [t.dtype for t in inputs.args] == [BF16, F32, torch.bool]
        model(*inputs.args)

    holds(inputs_for(model), law, 30)


def test_a_guard_that_was_told_a_dtype_has_its_inputs_in_it():
    model = guard(Annotated_(dtype=BF16), dtype=F16)
    assert reached(inputs_for(model), lambda i: i.arguments["x"].dtype, 20) == {F16}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own
def test_a_compiled_module_has_the_inputs_of_the_module_inside():
    model = torch.compile(Annotated_(4, BF16), backend="eager")
    for inputs in drawn(inputs_for(model), 20):
        assert inputs.arguments["x"].dtype is BF16
        assert inputs.arguments["x"].shape[1] == 4


def test_the_model_is_neither_called_nor_changed():
    model = Annotated_()
    calls = []
    model.register_forward_pre_hook(lambda *args: calls.append(args))
    before, state = {**vars(model)}, copy.deepcopy(model.state_dict())
    drawn(inputs_for(model), 50)
    assert calls == []
    assert vars(model).keys() == before.keys()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert type(model) is Annotated_


@enforce(mutates=("buffer",))
def accumulate(buffer: Row, x: Row):
    return buffer.add_(x)


@enforce
def doubled(x: Row, *, out: Row):
    return torch.add(x, x, out=out)


@pytest.mark.parametrize("fn", [accumulate, doubled], ids=lambda fn: fn.__name__)
@pytest.mark.usefixtures("strict")
def test_what_the_body_writes_to_can_be_written_to(fn):
    """No two elements of it share memory."""
    holds(inputs_for(fn), lambda inputs: call(fn, inputs), 60)


# ---------------------------------------------------------------- options


def test_axes_hold_for_all_arguments():
    for inputs in drawn(inputs_for(two_tensors, axes={"c": 3, "b": st.integers(5, 6)}), 50):
        assert inputs.args[0].shape[1] == inputs.args[1].shape[0] == 3
        assert inputs.args[0].shape[0] in (5, 6)


def test_axes_of_variadic_names():
    for inputs in drawn(inputs_for(variadic, axes={"*b": (2, 0)}), 50):
        assert inputs.args[0].shape[:-1] == inputs.args[1].shape == (2, 0)


def test_axes_that_expressions_use():
    for inputs in drawn(inputs_for(convolution, axes={"h": 9, "kh": 3}), 50):
        assert inputs.args[2].shape[2] == 7


@pytest.mark.thin(3)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("strict")
def test_layouts_hold_for_all_arguments(layout):
    holds(inputs_for(held(convolution), layout=layout), lambda i: held(convolution)(*i.args), 20)


def test_all_layouts_are_drawn():
    def laid(inputs):
        x = inputs.args[0]
        return x.is_contiguous(), 0 in x.stride(), x.storage_offset() > 0

    assert len(reached(inputs_for(two_tensors), laid)) >= 4


def test_gradients_are_asked_for():
    asked = inputs_for(two_tensors, requires_grad=True)
    assert reached(asked, lambda i: tuple(t.requires_grad for t in i.args), 20) == {(True, True)}
    assert reached(inputs_for(two_tensors), lambda i: tuple(t.requires_grad for t in i.args), 50) == {(False, False)}
    mixed = inputs_for(two_tensors, requires_grad=st.booleans())
    assert len(reached(mixed, lambda i: tuple(t.requires_grad for t in i.args))) == 4


def test_dtypes_narrow_every_argument():
    halves = inputs_for(symbolic, dtypes=(F16, BF16))
    assert reached(halves, lambda i: i.args[0].dtype) == {F16, BF16}
    one = inputs_for(symbolic, dtypes=F64)
    assert reached(one, lambda i: tuple(t.dtype for t in i.args), 20) == {(F64, F64, F64)}


def test_finite_numbers_alone():
    holds(inputs_for(symbolic, dtypes=(F32, BF16), finite=True), lambda i: [finite(t) for t in i.args], 40)
    assert reached(inputs_for(symbolic, dtypes=F32), lambda i: bool(i.args[0].isfinite().all())) == {False, True}


def finite(tensor):
    assert tensor.isfinite().all()


def test_tensors_are_made_on_a_device():
    meta = inputs_for(containers, device="meta")
    holds(meta, lambda i: [t.is_meta or 1 / 0 for t in tensors_of(i)], 20)


def lookup(ids: Int64[Tensor, "b t"], table: Float[Tensor, "10 d"], scale: Float[Tensor, ""]):
    return F.embedding(ids, table) * scale


def test_elements_of_one_argument():
    numbers = {"ids": st.integers(0, 9), "scale": st.just(0.5)}

    def law(inputs):
        ids, table, scale = inputs.args
        assert ((ids >= 0) & (ids < 10)).all()
        assert scale == 0.5
        assert lookup(*inputs.args).shape == (*ids.shape, table.shape[1])

    holds(inputs_for(lookup, elements=numbers, dtypes=(F32, torch.int64)), law)


def test_elements_of_all_arguments():
    ones = inputs_for(two_tensors, elements=st.just(1))
    holds(ones, lambda i: [(t == 1).all() or 1 / 0 for t in i.args], 30)


def test_elements_of_rest_and_keywords():
    def fn(*rest: Row, **more: Row): ...

    def law(inputs):
        assert all((row == 1).all() for row in inputs.args)
        assert all((row == 2).all() for row in inputs.kwargs.values())

    holds(inputs_for(fn, elements={"rest": st.just(1), "more": st.just(2)}), law, 50)


def test_elements_inside_containers():
    ones = inputs_for(nested, elements={"x": st.just(1), "y": st.just(2)})

    def law(inputs):
        assert all((row == 1).all() for rows in inputs.arguments["x"].values() for row, _ in rows)
        assert all(row is None or (row == 2).all() for rows in inputs.arguments["y"] for row in rows.values())

    holds(ones, law, 50)


def test_numbers_of_every_sort_are_met_where_none_are_asked_for():
    x = [i.args[0] for i in drawn(inputs_for(two_tensors), 200)]
    assert any(t.isnan().any() for t in x)
    assert any(t.isinf().any() for t in x)
    assert any(((t != 0) & (t.abs() < torch.finfo(F32).tiny)).any() for t in x)
    assert any((t == torch.finfo(F32).max).any() for t in x)


# ---------------------------------------------------------------- what is refused, and how


def unannotated(x, y: Row): ...


def unannotated_rest(x: Row, *rest): ...


def of_an_unknown_name(x: Row, y: "Nowhere"): ...


class Unbuildable:
    def __init__(self, anything): ...


def of_an_unbuildable_class(x: Row, w: Unbuildable): ...


def of_an_unbuildable_list(x: Row, w: list[Unbuildable] | None = None): ...


def of_a_foreign_array(x: Row, w: Float32[Unbuildable, "n"]): ...


def of_no_dtype(x: Row, k: "dtypeguard_tests_key"): ...


def never_fitting(x: Float32[Tensor, "a"], y: Float32[Tensor, "-a-1"]): ...


def bound_to_the_right(x: Float32[Tensor, "a+1"], y: Float32[Tensor, "a"]): ...


def of_a_pytree_axis(x: Float32[Tensor, "?a"]): ...


def malformed(x: "Float32[Tensor, 'a,b']"): ...


def of_a_bare_family(x: Float): ...


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (unannotated, ["unannotated", "`x`", "no annotation", "annotate it", 'Float[Tensor, "..."]']),
        (lambda x: x, ["<lambda>", "`x`", "no annotation", "annotate it"]),
        (nn.Sequential(nn.Linear(2, 2)), ["Sequential.forward", "`input`", "no annotation"]),
        (of_an_unknown_name, ["of_an_unknown_name", "Nowhere", "not defined"]),
        (enforce(of_an_unknown_name), ["of_an_unknown_name", "Nowhere", "not defined"]),
        (of_an_unbuildable_class, ["of_an_unbuildable_class", "`w`", "Unbuildable", "register_type_strategy"]),
        (of_an_unbuildable_list, ["of_an_unbuildable_list", "`w`", "Unbuildable", "register_type_strategy"]),
        (of_a_foreign_array, ["of_a_foreign_array", "`w`", "it wants a Unbuildable"]),
        (never_fitting, ["never_fitting", "no value is made", "no sizes of its axes"]),
        (bound_to_the_right, ["bound_to_the_right", "`a+1`", "not bound yet"]),
        (of_a_pytree_axis, ["of_a_pytree_axis", "?a"]),
        (malformed, ["malformed", "`x`", "a,b"]),
        (of_a_bare_family, ["of_a_bare_family", "`x`", "alone is no annotation"]),
    ],
    ids=lambda case: getattr(case, "__name__", type(case).__name__) if callable(case) else "",
)
def test_what_cannot_be_drawn_is_refused_at_the_call(fn, said):
    text = refusal(fn)
    for part in said:
        assert part in text
    assert "Unsatisfiable" not in text


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (Annotated_, "the class Annotated_"),
        (Sample, "the class Sample"),
        (3, "not 3"),
        ("two_tensors", "not 'two_tensors'"),
        (None, "not None"),
        (torch.ones(2), "inputs_for takes a function, a method or a module"),
        (functools.partial(two_tensors, torch.ones(1, 1)), "functools.partial"),
        (len, "built-in function len"),
        (torch.add, "add"),
        (Holder.method, "bound"),
        (Annotated_.forward, "bound"),
    ],
    ids=named,
)
def test_what_has_no_arguments_of_its_own_is_refused(target, said):
    assert said in refusal(target, TypeError)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"elements": {"z": st.floats()}}, ValueError, "no argument 'z', only x, y"),
        ({"elements": {"x": 3}}, TypeError, "is not a strategy of numbers"),
        ({"elements": {"x": [1.0]}}, TypeError, "is not a strategy of numbers"),
        ({"elements": 3}, TypeError, "is not a strategy of numbers"),
        ({"elements": [1.0, 2.0]}, TypeError, "is not a strategy of numbers"),
        ({"axes": {"d": 3}}, ValueError, "no axis 'd'; its named axes are b, c"),
        ({"axes": {"b": -1}}, ValueError, "b=-1"),
        ({"axes": {"b": (1, 2)}}, ValueError, "b=(1, 2)"),
        ({"axes": {"b": 1.5}}, ValueError, "b=1.5"),
        ({"axes": {"*b": (1, 2)}}, ValueError, "no axis '*b'"),
        ({"layout": "sideways"}, ValueError, "'contiguous', 'transposed'"),
        ({"layout": 3}, (TypeError, ValueError), "is not a layout"),
        ({"device": "gpu"}, ValueError, "device='gpu'"),
        ({"device": 1.5}, TypeError, "device=1.5"),
        ({"requires_grad": "yes"}, TypeError, "requires_grad='yes'"),
        ({"dtypes": "float32"}, TypeError, "dtypes="),
        ({"dtypes": [np.float32]}, TypeError, "is not a dtype such as torch.float32"),
        ({"dtypes": ()}, AnnotationError, "dtypes="),
        ({"dtypes": torch.int64}, AnnotationError, "none of its dtypes is among those in dtypes="),
    ],
    ids=named,
)
def test_unknown_options_are_refused_at_the_call(options, error, said):
    assert said in refusal(two_tensors, error, **options)


def test_a_number_that_a_dtype_cannot_hold_is_named():
    with pytest.raises(ValueError, match=r"elements= gave 'a', which float32 cannot hold"):
        drawn(inputs_for(two_tensors, elements={"x": st.just("a")}), 5)


class Missing(nn.Module):
    def forward(self, x: Float[Tensor, "b {self.width}"]): ...


def of_a_key(x: Float[Tensor, "{sizes['width']}"], sizes: dict[str, int]): ...


@pytest.mark.parametrize(("target", "axis"), [(Missing(), "{self.width}"), (of_a_key, "{sizes['width']}")], ids=named)
def test_an_axis_that_can_never_be_computed_is_named(target, axis):
    with pytest.raises(AnnotationError, match=re.escape(axis)):
        drawn(inputs_for(target), 10)


def test_what_a_decorator_takes_is_no_annotation_of_its_arguments():
    def wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs): ...

    assert "`args`" in refusal(wrapper, (AnnotationError, TypeError))


def test_a_result_that_cannot_be_read_is_in_nobodys_way():
    def fn(x: Row) -> "Nowhere": ...

    assert len(drawn(inputs_for(fn), 10)) == 10


def test_a_module_without_its_parameters_yet_is_refused():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.LazyLinear(3)

        def forward(self, x: Float[Tensor, "b c"]):
            return self.fc(x)

    model = Lazy()
    assert "Lazy" in refusal(model, dtypeguard.DtypeGuardError)
    model(torch.ones(2, 4, dtype=F32))
    assert reached(inputs_for(model), lambda inputs: inputs.args[0].dtype, 10) == {F32}


def test_a_strategy_of_sizes_that_no_expression_fits_is_no_endless_search():
    with pytest.raises(Exception, match=r"(?i)unsatisfiable|unable to satisfy|filter") as caught:
        drawn(inputs_for(far_apart, axes={"a": st.just(0), "b": st.just(5)}), 20)
    assert "hypothesis" in type(caught.value).__module__


# ---------------------------------------------------------------- as hypothesis sees it


def test_a_strategy_shows_in_one_short_line():
    for strategy in (inputs_for(two_tensors), inputs_for(Annotated_()), st.tuples(inputs_for(convolution))):
        assert len(repr(strategy)) < 100
        assert "\n" not in repr(strategy)
    assert "two_tensors" in repr(inputs_for(two_tensors))


def test_a_failure_shows_the_call():
    @settings(max_examples=50, deadline=None, database=None)
    @given(inputs_for(two_tensors))
    def test(inputs):
        assert inputs.args[0].dtype is not F32

    with pytest.raises(AssertionError) as caught:
        test()
    note = "\n".join(caught.value.__notes__)
    assert "inputs=<BoundArguments (x=tensor([[0.]]), y=tensor([0.]))>" in note


def test_strategies_compose():
    both = st.tuples(inputs_for(two_tensors), st.integers(0, 3)).map(lambda pair: pair[0])
    holds(both.filter(lambda i: i.args[0].numel() > 0), lambda i: i.args[0].numel() > 0 or 1 / 0, 20)
    holds(st.one_of(inputs_for(two_tensors), inputs_for(nothing)), lambda i: i.args, 20)
    holds(st.lists(inputs_for(two_tensors), max_size=2), len, 20)


def test_two_strategies_in_one_test_do_not_share_sizes():
    pairs = st.tuples(inputs_for(two_tensors), inputs_for(two_tensors))
    assert reached(pairs, lambda p: p[0].args[0].shape == p[1].args[0].shape) == {False, True}


def test_a_strategy_can_be_drawn_from_inside_a_test():
    @settings(max_examples=20, deadline=None, database=None)
    @given(st.data())
    def test(data):
        inputs = data.draw(inputs_for(two_tensors))
        assert inputs.args[0].shape[1] == inputs.args[1].shape[0]

    test()


@pytest.mark.parametrize("fn", [two_tensors, hints_in_containers, unions, nested], ids=lambda fn: fn.__name__)
def test_nothing_global_is_changed(fn):
    from hypothesis.strategies._internal import types as known

    strategy = inputs_for(fn)
    registered = [*known._global_type_lookup]
    rng, mode = torch.get_rng_state(), dtypeguard.get_mode()
    default, device = torch.get_default_dtype(), torch.empty(0).device
    notes = {**vars(fn)}

    def law(inputs):
        state = random.getstate()
        law.states.add(hash(state))

    law.states = set()
    holds(strategy, law, 30)
    assert len(law.states) == 1
    assert torch.equal(torch.get_rng_state(), rng)
    assert (torch.get_default_dtype(), torch.empty(0).device, dtypeguard.get_mode()) == (default, device, mode)
    assert [*known._global_type_lookup] == registered
    assert vars(fn) == notes
    assert dtypeguard.casts() == []


@pytest.mark.thin(4)
@pytest.mark.parametrize("mode", ["strict", "lenient", "warn", "off"])
def test_the_mode_makes_no_difference_to_what_is_drawn(mode):
    usual = [str(i) for i in drawn(inputs_for(unions), 30)]
    with dtypeguard.mode(mode):
        assert [str(i) for i in drawn(inputs_for(unions), 30)] == usual
    assert dtypeguard.casts() == []


def test_grad_mode_and_inference_mode_make_no_difference():
    for region in (torch.no_grad, torch.inference_mode):
        with region():
            holds(inputs_for(two_tensors), lambda i: call(held(two_tensors), i), 20)


def test_a_default_device_is_where_tensors_are_made():
    with torch.device("meta"):
        assert reached(inputs_for(two_tensors), lambda i: i.args[0].device.type, 20) == {"meta"}


def test_a_default_dtype_makes_no_difference():
    usual = [str(i.args[0].dtype) for i in drawn(inputs_for(symbolic), 30)]
    torch.set_default_dtype(F64)
    try:
        assert [str(i.args[0].dtype) for i in drawn(inputs_for(symbolic), 30)] == usual
    finally:
        torch.set_default_dtype(F32)


# ---------------------------------------------------------------- shrinking


def attention(q: Float[Tensor, "b t d"], k: Float[Tensor, "b s d"], v: Float[Tensor, "b s e"]):
    return torch.softmax(q @ k.mT, -1) @ v


def shrinks(n: int, x: Float32[Tensor, "{n}"], *, y: Row | None, zs: list[Row], k: int = 3): ...


def has_rows(rows):
    return any(row is not None for one in rows for row in one.values())


MINIMAL = {
    "a long axis": (
        attention,
        lambda q, k, v: q.shape[1] > 2,
        "q=tensor([[[0.], [0.], [0.]]]), k=tensor([[[0.]]]), v=tensor([[[0.]]])",
    ),
    "axes that differ": (
        attention,
        lambda q, k, v: q.shape[1] != k.shape[1],
        "q=tensor([[[0.]]]), k=tensor([[[0.], [0.]]]), v=tensor([[[0.], [0.]]])",
    ),
    "two of a shared axis": (
        attention,
        lambda q, k, v: q.shape[0] > 1,
        "q=tensor([[[0.]], [[0.]]]), k=tensor([[[0.]], [[0.]]]), v=tensor([[[0.]], [[0.]]])",
    ),
    "a dtype": (
        attention,
        lambda q, k, v: k.dtype is BF16,
        "q=tensor([[[0.]]]), k=tensor([[[0.]]], dtype=torch.bfloat16), v=tensor([[[0.]]])",
    ),
    "NaN": (
        attention,
        lambda q, k, v: v.dtype is F32 and v.isnan().any(),
        "q=tensor([[[0.]]]), k=tensor([[[0.]]]), v=tensor([[[nan]]])",
    ),
    "a given default": (
        shrinks,
        lambda n, x, y, zs, k=None: k is not None,
        "n=0, x=tensor([]), y=None, zs=[], k=0",
    ),
    "a large default": (
        shrinks,
        lambda n, x, y, zs, k=0: k > 10,
        "n=0, x=tensor([]), y=None, zs=[], k=11",
    ),
    "a list of two": (
        shrinks,
        lambda n, x, y, zs, k=0: len(zs) == 2,
        "n=0, x=tensor([]), y=None, zs=[tensor([0.]), tensor([0.])]",
    ),
    "an option": (
        shrinks,
        lambda n, x, y, zs, k=0: y is not None,
        "n=0, x=tensor([]), y=tensor([0.]), zs=[]",
    ),
    "an int that sizes": (
        shrinks,
        lambda n, x, y, zs, k=0: n > 1,
        "n=2, x=tensor([0., 0.]), y=None, zs=[]",
    ),
    "an expression": (
        symbolic,
        lambda x, y, z: y.numel() > 3,
        "x=tensor([[0., 0.], [0., 0.]]), y=tensor([0., 0., 0., 0.]), z=tensor([], size=(4, 0))",
    ),
    "one more row": (
        rest_alone,
        lambda *rows: len(rows) == 2,
        "rows=(tensor([0.]), tensor([0.]))",
    ),
    "a nested tensor": (
        nested,
        lambda x, y, z: has_rows(y),
        "x={}, y=[{'': tensor([0.])}], z=tensor([0.])",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fn", "predicate", "minimal"),
    MINIMAL.values(),
    ids=MINIMAL,
)
def test_what_fails_shrinks_to_the_smallest_call(fn, predicate, minimal):
    thorough = settings(max_examples=1000, database=None, derandomize=True)
    smallest = find(inputs_for(fn), lambda i: predicate(*i.args, **i.kwargs), settings=thorough)
    assert predicate(*smallest.args, **smallest.kwargs)
    assert " ".join(str(smallest).split()) == f"<BoundArguments ({minimal})>"


@pytest.mark.slow
@pytest.mark.parametrize("n", range(4))
@pytest.mark.parametrize("fn", [two_tensors, attention, symbolic, containers, optional], ids=lambda fn: fn.__name__)
def test_a_test_that_always_fails_is_shown_the_simplest_call(fn, n):
    shown = []

    @seed(n)
    @settings(max_examples=50, deadline=None, database=None)
    @given(inputs_for(fn))
    def test(inputs):
        shown.append(inputs)
        raise AssertionError

    with pytest.raises(AssertionError):
        test()
    for tensor in tensors_of(shown[-1]):
        assert tensor.dtype in (F32, torch.int64)
        assert set(tensor.shape) <= {0, 1, 2}
        assert (tensor == 0).all()


# ---------------------------------------------------------------- losses and layers that others wrote


@enforce(anchor="pred")
def huber(pred: Float[Tensor, "*b"], target: Float[Tensor, "*b"], delta: Float[Tensor, ""]) -> Float[Tensor, "*b"]:
    error = (pred - target).abs()
    return torch.where(error < delta, 0.5 * error**2, delta * (error - 0.5 * delta))


@enforce(anchor="logits")
def focal(logits: Float[Tensor, "b c"], target: Int64[Tensor, "b"]) -> Float[Tensor, "b"]:
    loss = F.cross_entropy(logits, target, reduction="none")
    return (1 - (-loss).exp()) ** 2 * loss


@enforce(anchor="anchor")
def triplet(
    anchor: Float[Tensor, "b d"], positive: Float[Tensor, "b d"], negative: Float[Tensor, "b d"]
) -> Float[Tensor, ""]:
    return F.triplet_margin_loss(anchor, positive, negative)


@enforce(anchor="q")
def masked_attention(
    q: Float[Tensor, "b h t d"],
    k: Float[Tensor, "b h s d"],
    v: Float[Tensor, "b h s e"],
    mask: Bool[Tensor, "#b #h t s"] | None = None,
) -> Float[Tensor, "b h t e"]:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@enforce(anchor="x")
def rotary(
    x: Float[Tensor, "b t d"], cos: Float[Tensor, "t d//2"], sin: Float[Tensor, "t d//2"]
) -> Float[Tensor, "b t (d//2)*2"]:
    a, b = x[..., : cos.shape[-1]], x[..., cos.shape[-1] : 2 * cos.shape[-1]]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


@enforce(anchor="x")
def conv2d(
    x: Float[Tensor, "b c h w"], weight: Float[Tensor, "o c kh kw"], bias: Float[Tensor, "o"] | None = None
) -> Float[Tensor, "b o h-kh+1 w-kw+1"]:
    return F.conv2d(x, weight, bias)


@enforce(anchor="x")
def layer_norm(x: Float[Tensor, "*b d"], weight: Float[Tensor, "d"], bias: Float[Tensor, "d"]) -> Float[Tensor, "*b d"]:
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


@enforce(anchor="x")
def cosine(x: Float[Tensor, "a d"], y: Float[Tensor, "b d"]) -> Float[Tensor, "a b"]:
    return F.cosine_similarity(x[:, None], y[None], dim=-1)


@enforce
def bag(ids: Int64[Tensor, "b t"], table: Float[Tensor, "7 d"]) -> Float[Tensor, "b d"]:
    return F.embedding(ids, table).mean(1)


@enforce(anchor="x")
def gated(x: Float[Tensor, "b d"], w: list[Float[Tensor, "d d"]]) -> Float[Tensor, "b d"]:
    for matrix in w:
        x = x * torch.sigmoid(x @ matrix)
    return x


@enforce(anchor="x")
def batch_norm(
    x: Float[Tensor, "b c *rest"], mean: Float[Tensor, "c"], var: Float[Tensor, "c"], eps: Literal[1e-5, 1e-3] = 1e-5
) -> Float[Tensor, "b c *rest"]:
    return F.batch_norm(x, mean, var, eps=eps)


UNIT = st.sampled_from((0, 1))
IMAGES = {
    **dict.fromkeys(("b", "c", "o", "kh", "kw"), st.integers(1, 3)),
    "h": st.integers(3, 5),
    "w": st.integers(3, 5),
}
ZOO = [
    (huber, {}), (focal, {"axes": {"c": 4}, "elements": {"target": st.integers(0, 3)}}), (triplet, {}),
    (masked_attention, {}), (rotary, {}), (conv2d, {"axes": IMAGES}),
    (layer_norm, {"axes": {"d": st.integers(1, 5)}}), (cosine, {}), (bag, {"elements": {"ids": st.integers(0, 6)}}),
    (gated, {}), (batch_norm, {"elements": UNIT}),
]  # fmt: skip


@pytest.mark.thin(3)
@pytest.mark.parametrize(("fn", "options"), ZOO, ids=[fn.__name__ for fn, _ in ZOO])
@pytest.mark.usefixtures("strict")
def test_real_losses_and_layers_run_on_what_is_drawn(fn, options):
    """Their results keep their annotations too."""
    dtypes = (F32, F64, BF16, torch.int64, torch.bool)
    holds(inputs_for(fn, dtypes=dtypes, finite=True, **options), lambda i: fn(*i.args, **i.kwargs), 15)
    assert dtypeguard.casts() == []


@pytest.mark.usefixtures("strict")
def test_two_ways_to_write_attention_agree():
    def law(inputs):
        q, k, v = inputs.args[:3]
        scores = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        torch.testing.assert_close(masked_attention(q, k, v), scores @ v)

    axes = {"d": st.integers(1, 4), "s": st.integers(1, 4)}
    holds(inputs_for(masked_attention, dtypes=(F32, F64, torch.bool), elements=UNIT, axes=axes), law, 60)


@pytest.mark.usefixtures("strict")
def test_a_wrong_loss_is_found_and_shrunk():
    """A row of padding, whose mean is NaN."""

    @enforce
    def masked_mean(x: Float32[Tensor, "b t"], mask: Bool[Tensor, "b t"]) -> Float32[Tensor, "b"]:
        return (x * mask).sum(1) / mask.sum(1)

    def is_nan(inputs):
        return bool(masked_mean(*inputs.args).isnan().any())

    found = find(
        inputs_for(masked_mean, finite=True),
        is_nan,
        settings=settings(max_examples=1000, database=None, derandomize=True),
    )
    assert [t.tolist() for t in found.args] == [[[0.0]], [[False]]]


@pytest.mark.slow
@pytest.mark.parametrize("fn", [two_tensors, attention, containers, convolution, records], ids=lambda fn: fn.__name__)
def test_health_checks_stay_quiet_over_thousands_of_inputs(fn):
    counted = []
    holds(inputs_for(fn), counted.append, 3000)
    assert len(counted) == 3000
