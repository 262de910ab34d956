"""`testing.inputs_for` draws all arguments of a call, and every call that it draws keeps the contract."""

import dataclasses
import enum
import functools
import inspect
import random
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, ParamSpec, TypeVar

import numpy as np
import postponed
import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st
from jaxtyping import Bool, Float, Float32, Float64, Int, Int64
from strategies import drawn, holds
from support import BF16, F16, F32, F64
from torch import Tensor, nn
from typing_extensions import TypedDict

import dtypeguard
from dtypeguard import AnnotationError, DtypeError, GuardedModule, enforce, guard
from dtypeguard.testing import inputs_for

Row = Float32[Tensor, "n"]


def reached(strategy, what, examples=60):
    return {what(value) for value in drawn(strategy, examples)}


def tensors_of(value):
    """All tensors among the arguments, at any depth."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, inspect.BoundArguments):
        value = value.arguments
    if dataclasses.is_dataclass(value):
        value = vars(value)
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in tensors_of(item)]


# ---------------------------------------------------------------- one table of functions


def two_tensors(x: Float32[Tensor, "b c"], y: Float32[Tensor, "c"]): ...


def all_kinds(x: Row, /, n: int, *rest: Row, y: Row, flag: bool = True, **more: Row): ...


def defaults_before_rest(x: Row | None = None, *rest: Row, y: Row | None = None): ...


def positional_only_defaults(x: Row | None = None, y: Row | None = None, /, z: Row | None = None, *rest: Row): ...


def rest_alone(*rows: Row): ...


def keywords_alone(**rows: Row): ...


def nothing(): ...


def through(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


@through
@enforce
def wrapped_around_enforced(x: Row, y: Row, *, z: Row): ...


class Holder:
    width = 3

    @staticmethod
    def static(x: Row, y: Row): ...

    @classmethod
    def of_the_class(cls, x: Row, y: Row): ...

    @enforce
    def of_its_width(self, x: Float32[Tensor, "n {self.width}"]): ...

    def __call__(self, x: Row, y: Row): ...


def of_what_is_below(x: "Below", y: "Below"): ...


Below = Row


def enforced_before_a_local_name():
    Local = Row

    @enforce
    def inner(x: "Local", y: "Later"):
        assert Later is Row

    Later = Row
    return inner


Named = NewType("Named", int)
Bound = TypeVar("Bound", bound=Row)


def of_wrapped_hints(x: Annotated[Row, "documented"], y: Bound, z: Bound, n: Named): ...


@enforce(anchor="pred")
def anchored_behind(target: Float[Tensor, "b"], weight: Float[Tensor, "b"] | None, *, pred: Float[Tensor, "b"]): ...


def symbolic(x: Float[Tensor, "a b"], y: Float[Tensor, "a+b"], z: Float[Tensor, "a*b a-b"]): ...


def convolution(
    x: Float[Tensor, "b c h w"], weight: Float[Tensor, "o c kh kw"], y: Float[Tensor, "b o h-kh+1 w-kw+1"]
): ...


def far_apart(x: Float[Tensor, "a"], y: Float[Tensor, "b"], z: Float[Tensor, "a*100-b*37"]): ...


def of_an_int_behind(x: Float[Tensor, "{n}"], y: Float[Tensor, "b {n}-b"], n: int): ...


def of_a_default(x: Row, n: Literal[2, 4] = 2, y: Float[Tensor, "{n}"] | None = None): ...


def of_a_length(names: list[str], x: Float[Tensor, "b {len(names)}"]): ...


def of_a_shape_behind(y: Float[Tensor, "{x.shape[0]}"], x: Float[Tensor, "b"]): ...


def broadcast(x: Float[Tensor, "#b #c"], y: Float[Tensor, "#b #c"], z: Float[Tensor, "b c"]): ...


def broadcast_and_symbolic(x: Float[Tensor, "#b"], y: Float[Tensor, "#b"], z: Float[Tensor, "b+1"]): ...


def variadic(x: Float[Tensor, "*b c"], y: Float[Tensor, "*b"], z: Float[Tensor, "... c"]): ...


def variadic_broadcast(x: Float[Tensor, "*#b c"], y: Float[Tensor, "*#b"], z: list[Float[Tensor, "*#b c"]]): ...


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


def records(pair: Pair, pairs: list[Pair], batch: Batch, sample: Sample): ...


def nested(x: dict[str, list[tuple[Row, int]]], y: list[dict[str, Row | None]], z: Row): ...


def recursive(node: postponed.Node): ...


def mixed_tuples(x: tuple[Row, int, str], y: tuple[Row, Any], z: tuple[()], w: tuple): ...


def unions(x: Float[Tensor, "a"] | Int[Tensor, "a b"], y: Int[Tensor, "b"] | Float[Tensor, "a"]): ...


def union_of_one_rank(x: Row | Float32[Tensor, "m"], y: Row | None, z: Float32[Tensor, "m"]): ...


def union_of_two_orders(x: Float32[Tensor, "a b"] | Float32[Tensor, "b a"], y: Float32[Tensor, "a"]): ...


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
    x: Row, mode: Literal["a", "b"], reduction: Reduction, activation: Callable[[int], int], sizes: Sequence[int],
    schedule: Schedule,
): ...  # fmt: skip


def hints_of_torch(
    x: Row, dtype: torch.dtype, device: torch.device | None, size: torch.Size, generator: torch.Generator | None = None
): ...


def arrays(x: Float32[np.ndarray, "a b"], y: Int64[np.ndarray, "b"], z: Float32[Tensor, "a"]): ...


def parameters(x: nn.Parameter, y: Float32[nn.Parameter, "a"]): ...


FUNCTIONS = {
    getattr(fn, "__qualname__", "Holder()").rpartition("<locals>.")[2]: fn
    for fn in [
        two_tensors, all_kinds, defaults_before_rest, positional_only_defaults, rest_alone, keywords_alone, nothing,
        wrapped_around_enforced, Holder.static, Holder.of_the_class, Holder().of_its_width, Holder(), of_what_is_below,
        enforced_before_a_local_name(), of_wrapped_hints, anchored_behind, symbolic, convolution, far_apart,
        of_an_int_behind, of_a_default, of_a_length, of_a_shape_behind, broadcast, broadcast_and_symbolic, variadic,
        variadic_broadcast, records, nested, recursive, mixed_tuples, unions, union_of_one_rank, union_of_two_orders,
        symbolic_over_a_union, symbolic_over_an_optional, hints_without_tensors, hints_of_torch, arrays, parameters,
        postponed.function, postponed.forward_reference, postponed.Plain().method,
    ]
}  # fmt: skip


def held(fn):
    """The same callable, enforced."""
    if inspect.ismethod(fn):
        return types.MethodType(held(fn.__func__), fn.__self__)
    if not inspect.isfunction(fn):
        return types.MethodType(held(type(fn).__call__), fn)
    return fn if "dtypeguard" in fn.__code__.co_filename else enforce(fn)


@pytest.mark.thin(4)
@pytest.mark.filterwarnings("ignore:enforce reads annotations")  # some have none
@pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("examples", [8, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("strict")
def test_the_enforced_function_accepts_what_is_drawn(fn, examples):
    strict = held(fn)
    holds(inputs_for(fn), lambda inputs: strict(*inputs.args, **inputs.kwargs), examples)
    assert dtypeguard.casts() == []


def test_what_is_drawn_for_one_function_breaks_another():
    """The law above can fail."""

    @enforce(mode="strict")
    def doubles(x: Float64[Tensor, "b c"], y: Float32[Tensor, "c"]): ...

    def law(inputs):
        with pytest.raises(DtypeError, match="argument `x` is float32"):
            doubles(*inputs.args)

    holds(inputs_for(two_tensors), law, 20)


def ids(value):
    items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
    return [id(item) for item in items]


OF_EVERY_KIND = [all_kinds, defaults_before_rest, positional_only_defaults, keywords_alone, nothing]


@pytest.mark.parametrize("fn", OF_EVERY_KIND, ids=lambda fn: fn.__name__)
def test_python_binds_the_call_to_the_same_arguments(fn):
    """The arguments reach the parameters that they were drawn for, and each is left out at times, if it may be."""
    signature, seen = inspect.signature(fn), set()

    def law(inputs):
        assert inputs.signature == signature
        bound = signature.bind(*inputs.args, **inputs.kwargs).arguments
        assert [*bound] == [*inputs.arguments]
        assert [ids(value) for value in bound.values()] == [ids(value) for value in inputs.arguments.values()]
        seen.add(tuple(bound))

    holds(inputs_for(fn), law, 100)
    optional = [p for p in signature.parameters.values() if p.default is not p.empty or p.kind in (2, 4)]
    assert {name for names in seen for name in names} == {*signature.parameters}
    assert all(any(param.name not in names for names in seen) for param in optional)


def test_unannotated_arguments_with_a_default_are_left_out():
    def fn(x: Row, scale=2.0, *, bias=None) -> "Nowhere": ...

    assert reached(inputs_for(fn), lambda inputs: tuple(inputs.arguments)) == {("x",)}


def test_axes_that_ask_for_arguments_take_many_sizes():
    widths = {
        of_an_int_behind: lambda i: (i.arguments["n"], i.arguments["x"].shape[0]),
        of_a_length: lambda i: (len(i.arguments["names"]), i.arguments["x"].shape[1]),
        of_a_shape_behind: lambda i: (i.arguments["x"].shape[0], i.arguments["y"].shape[0]),
        two_tensors: lambda i: (i.args[0].shape[1], i.args[1].shape[0]),
    }
    for fn, sizes in widths.items():
        pairs = reached(inputs_for(fn), sizes)
        assert all(wanted == size for wanted, size in pairs)
        assert len(pairs) >= 3


def test_every_option_of_a_union_is_drawn():
    kinds = reached(inputs_for(unions), lambda i: tuple(t.is_floating_point() for t in i.args))
    assert kinds == {(False, False), (False, True), (True, False), (True, True)}


def test_the_first_option_that_fits_binds_its_axes():
    """A row is always `n`, whichever option it was drawn for, so `m` is free to be another size."""
    seen = set()
    for inputs in drawn(inputs_for(union_of_one_rank)):
        x, y, z = inputs.args
        assert y is None or len(y) == len(x)
        seen.add(len(z) == len(x))
    assert seen == {False, True}


def test_arguments_follow_the_anchor_in_every_dtype_that_it_may_have():
    dtypes = reached(inputs_for(anchored_behind), lambda i: frozenset(t.dtype for t in tensors_of(i)))
    assert all(len(of_one_call) == 1 for of_one_call in dtypes)
    assert {F16, BF16, F32, F64} <= {dtype for (dtype,) in dtypes}


# ---------------------------------------------------------------- modules


class Net(nn.Module):
    def __init__(self, dim=3, dtype=F32):
        super().__init__()
        self.dim = dim
        self.fc = nn.Linear(dim, 2, dtype=dtype)

    def forward(
        self, x: Float[Tensor, "b {self.dim}"], bias: Float[Tensor, "b 2"] | None = None, *, ids: Int64[Tensor, "b"]
    ) -> Float[Tensor, "b 2"]:
        y = self.fc(x)
        return y if bias is None else y + bias


class Enforced(Net):
    forward = enforce(Net.forward)


class Derived(GuardedModule, Net): ...


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


FORMS = {
    "plain": Net,
    "enforced": Enforced,
    "GuardedModule": Derived,
    "guarded": lambda *args: guard(Net(*args)),
    "guarded enforced": lambda *args: guard(Enforced(*args)),
    "forward": lambda *args: Net(*args).forward,
    "compiled": lambda *args: torch.compile(Net(*args), backend="eager"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_the_inputs_of_a_module_are_what_it_is_when_they_are_drawn(make):
    model = make(5, BF16)
    module = getattr(model, "__self__", getattr(model, "_orig_mod", model))
    strategy = inputs_for(model)
    for dtype, dim, device in ((BF16, 5, "cpu"), (F64, 5, "cpu"), (F64, 6, "meta")):
        module.to(dtype=dtype, device=device).dim = dim
        for inputs in drawn(strategy, 10):
            x, ids = inputs.arguments["x"], inputs.arguments["ids"]
            assert (x.dtype, x.shape[1], x.device.type) == (dtype, dim, device)
            assert (ids.dtype, ids.device.type) == (torch.int64, device)


@pytest.mark.parametrize("make", [Bare, Mixed, lambda: guard(Mixed())], ids=["bare", "mixed", "guarded mixed"])
@pytest.mark.usefixtures("strict")
def test_a_module_without_an_anchor_takes_every_floating_dtype(make):
    model = make()
    holds(inputs_for(model), lambda i: model(*i.args), 20)
    assert {F16, BF16, F32, F64} <= reached(inputs_for(model), lambda i: i.arguments["x"].dtype)


def test_a_guard_that_was_told_a_dtype_has_its_inputs_in_it():
    model = guard(Net(dtype=BF16), dtype=F16)
    assert reached(inputs_for(model), lambda i: i.arguments["x"].dtype, 20) == {F16}


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
    holds(inputs_for(fn), lambda inputs: fn(*inputs.args, **inputs.kwargs), 60)


# ---------------------------------------------------------------- options


def test_axes_hold_for_all_arguments():
    for inputs in drawn(inputs_for(two_tensors, axes={"c": 3, "b": st.integers(5, 6)}), 50):
        assert inputs.args[0].shape[1] == inputs.args[1].shape[0] == 3
        assert inputs.args[0].shape[0] in (5, 6)
    for inputs in drawn(inputs_for(convolution, axes={"h": 9, "kh": 3}), 50):
        assert inputs.args[2].shape[2] == 7


def test_options_narrow_every_argument():
    options = {"dtype": F64, "layout": "offset", "requires_grad": True, "elements": st.just(1), "device": "cpu"}
    for inputs in drawn(inputs_for(symbolic, **options)):
        for x in inputs.args:
            assert (x.dtype, x.requires_grad, x.storage_offset()) == (F64, True, 1)
            assert (x == 1).all()
    assert reached(inputs_for(symbolic, dtype=(F16, BF16)), lambda i: i.args[0].dtype) == {F16, BF16}


def test_elements_of_one_argument_those_of_rest_and_in_containers_included():
    def fn(ids: Int64[Tensor, "n"], rows: list[dict[str, Row]], *rest: Row, **more: Row): ...

    numbers = {"ids": 0, "rows": 1, "rest": 2, "more": 3}

    def law(inputs):
        for name, value in inputs.arguments.items():
            assert all((tensor == numbers[name]).all() for tensor in tensors_of(value))

    holds(inputs_for(fn, elements={name: st.just(number) for name, number in numbers.items()}), law, 50)


# ---------------------------------------------------------------- what is refused, and how


def unannotated(x, y: Row): ...


def of_an_unknown_name(x: Row, y: "Nowhere"): ...


class Unbuildable:
    def __init__(self, anything): ...


def of_an_unbuildable_list(x: Row, w: list[Unbuildable] | None = None): ...


def of_a_foreign_array(x: Row, w: Float32[Unbuildable, "n"]): ...


def never_fitting(x: Float32[Tensor, "a"], y: Float32[Tensor, "-a-1"]): ...


def bound_to_the_right(x: Float32[Tensor, "a+1"], y: Float32[Tensor, "a"]): ...


def of_a_bare_family(x: Float): ...


Parameters = ParamSpec("Parameters")


def of_a_wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs): ...


class Lazy(Net):
    def __init__(self):
        super().__init__()
        self.fc = nn.LazyLinear(3)


@pytest.mark.parametrize(
    ("fn", "error", "said"),
    [
        (unannotated, AnnotationError, ["unannotated", 'annotate it, `x: Float[Tensor, "..."]`']),
        (nn.Sequential(nn.Linear(2, 2)), AnnotationError, ["Sequential.forward", "`input`", "no annotation"]),
        (of_a_wrapper, AnnotationError, ["`args`"]),
        (of_an_unknown_name, AnnotationError, ["of_an_unknown_name", "Nowhere", "not defined"]),
        (of_an_unbuildable_list, AnnotationError, ["of_an_unbuildable_list", "`w`", "register_type_strategy"]),
        (of_a_foreign_array, AnnotationError, ["of_a_foreign_array", "`w`", "it wants a Unbuildable"]),
        (never_fitting, AnnotationError, ["never_fitting", "no value is made", "no sizes of its axes"]),
        (bound_to_the_right, AnnotationError, ["bound_to_the_right", "`a+1`", "not bound yet"]),
        (of_a_bare_family, AnnotationError, ["of_a_bare_family", "`x`", "alone is no annotation"]),
        (Lazy(), AnnotationError, ["Lazy", "call it once before"]),
        (Sample, TypeError, ["the class Sample"]),
        (3, TypeError, ["not 3"]),
        (torch.ones(2), TypeError, ["inputs_for takes a function, a method or a module"]),
        (functools.partial(two_tensors, torch.ones(1, 1)), TypeError, ["functools.partial"]),
        (torch.add, TypeError, ["add"]),
        (Net.forward, TypeError, ["Net.forward is a method without its object: give a bound one, Net().forward"]),
    ],
    ids=lambda case: getattr(case, "__name__", type(case).__name__) if callable(case) else "",
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_at_the_call(fn, error, said):
    with pytest.raises(error) as caught:
        inputs_for(fn)
    assert [part for part in said if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"elements": {"z": st.floats()}}, ValueError, "no argument 'z', only x, y"),
        ({"elements": {"x": 3}}, TypeError, "is not a strategy of numbers"),
        ({"elements": 3}, TypeError, "is not a strategy of numbers"),
        ({"axes": {"d": 3}}, ValueError, "no axis 'd'; its named axes are b, c"),
        ({"layout": "sideways"}, ValueError, "'contiguous', 'transposed'"),
        ({"dtype": torch.int64}, AnnotationError, "none of its dtypes is among those in dtype="),
    ],
)
def test_unknown_options_are_refused_at_the_call(options, error, said):
    with pytest.raises(error, match=re.escape(said)):
        inputs_for(two_tensors, **options)


class Missing(nn.Module):
    def forward(self, x: Float[Tensor, "b {self.width}"]): ...


def of_a_key(x: Float[Tensor, "{sizes['width']}"], sizes: dict[str, int]): ...


@pytest.mark.parametrize(("target", "axis"), [(Missing(), "{self.width}"), (of_a_key, "{sizes['width']}")])
def test_an_axis_that_can_never_be_computed_is_named(target, axis):
    with pytest.raises(AnnotationError, match=re.escape(axis)):
        drawn(inputs_for(target), 10)


def test_a_strategy_of_sizes_that_no_expression_fits_is_no_endless_search():
    with pytest.raises(Exception, match=r"(?i)unsatisfiable|unable to satisfy|filter") as caught:
        drawn(inputs_for(far_apart, axes={"a": st.just(0), "b": st.just(5)}), 20)
    assert "hypothesis" in type(caught.value).__module__


# ---------------------------------------------------------------- as hypothesis sees it


def test_a_failure_shows_the_call():
    @settings(max_examples=50, deadline=None, database=None)
    @given(inputs_for(two_tensors))
    def test(inputs):
        assert inputs.args[0].dtype is not F32

    with pytest.raises(AssertionError) as caught:
        test()
    note = "\n".join(caught.value.__notes__)
    assert "inputs=<BoundArguments (x=tensor([[0.]]), y=tensor([0.]))>" in note
    assert repr(inputs_for(two_tensors)) == "inputs_for(two_tensors)"


@pytest.mark.parametrize("fn", [two_tensors, hints_without_tensors, unions, nested], ids=lambda fn: fn.__name__)
def test_nothing_global_is_changed(fn):
    from hypothesis.strategies._internal import types as known

    strategy = inputs_for(fn)
    registered = [*known._global_type_lookup]
    rng, states = torch.get_rng_state(), set()
    holds(strategy, lambda inputs: states.add(hash(random.getstate())), 30)
    assert len(states) == 1
    assert torch.equal(torch.get_rng_state(), rng)
    assert [*known._global_type_lookup] == registered
    assert dtypeguard.casts() == []


def attention(q: Float[Tensor, "b t d"], k: Float[Tensor, "b s d"], v: Float[Tensor, "b s e"]): ...


def shrinks(n: int, x: Float32[Tensor, "{n}"], *, y: Row | None, zs: list[Row], k: int = 3): ...


ONE = "tensor([[[0.]]])"
MINIMAL = {
    "a long axis": (attention, lambda q, k, v: q.shape[1] > 2, f"q=tensor([[[0.], [0.], [0.]]]), k={ONE}, v={ONE}"),
    "a dtype": (
        attention,
        lambda q, k, v: k.dtype is BF16,
        f"q={ONE}, k=tensor([[[0.]]], dtype=torch.bfloat16), v={ONE}",
    ),
    "NaN": (attention, lambda q, k, v: v.dtype is F32 and v.isnan().any(), f"q={ONE}, k={ONE}, v=tensor([[[nan]]])"),
    "a default": (shrinks, lambda n, x, y, zs, k=0: k > 10, "n=0, x=tensor([]), y=None, zs=[], k=11"),
    "a list of two": (
        shrinks,
        lambda n, x, y, zs, k=0: len(zs) == 2,
        "n=0, x=tensor([]), y=None, zs=[tensor([0.]), tensor([0.])]",
    ),
    "an int that sizes": (shrinks, lambda n, x, y, zs, k=0: n > 1, "n=2, x=tensor([0., 0.]), y=None, zs=[]"),
    "an expression": (
        symbolic,
        lambda x, y, z: y.numel() > 3,
        "x=tensor([[0., 0.], [0., 0.]]), y=tensor([0., 0., 0., 0.]), z=tensor([], size=(4, 0))",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("fn", "predicate", "minimal"), MINIMAL.values(), ids=MINIMAL)
def test_what_fails_shrinks_to_the_smallest_call(fn, predicate, minimal):
    thorough = settings(max_examples=1000, database=None, derandomize=True)
    smallest = find(inputs_for(fn), lambda i: predicate(*i.args, **i.kwargs), settings=thorough)
    assert " ".join(str(smallest).split()) == f"<BoundArguments ({minimal})>"
