"""hypothesis learns jaxtyping's annotations by an entry point: `st.from_type`, `st.builds`, and how tensors print."""

import collections
import dataclasses
import importlib.metadata
import os
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Optional, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import SmallSearchSpaceWarning
from hypothesis.vendor.pretty import pretty
from jaxtyping import Float, Float32, Int, Int64, Num, Shaped
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from typing_extensions import TypedDict

import dtypeguard
from dtypeguard import AnnotationError, check, enforce
from dtypeguard.testing import inputs_for, violations_of
from dtypeguard.testing._elements import allocatable

ROOT = Path(__file__).parent.parent
Row = Float32[Tensor, "b"]
Grid = Float32[Tensor, "b c"]
UNEXPLAINED = (Phase.generate, Phase.shrink)  # explanations are found by tracing, which is slow


def holds(strategy, law, examples=30, derandomize=False):
    """Every value that is drawn satisfies a law."""

    @settings(max_examples=examples, deadline=None, database=None, phases=UNEXPLAINED, derandomize=derandomize)
    @given(strategy)
    def test(value):
        law(value)

    test()


def drawn(strategy, examples=40):
    """The same values in every run."""
    values = []
    holds(strategy, values.append, examples, derandomize=True)
    return values


# ---------------------------------------------------------------- st.from_type


@dataclass
class Sample:
    x: Row
    y: Grid
    n: int = 0


class Pair(NamedTuple):
    x: Row
    y: Row


class Batch(TypedDict):
    x: Row
    n: int


Bound = TypeVar("Bound", bound=Row)

HINTS = {
    "float32": Grid,
    "family": Float[Tensor, "b"],
    "integers": Int[Tensor, "b 3"],
    "anything": Shaped[Tensor, "..."],
    "scalar": Float32[Tensor, ""],
    "broadcast": Num[Tensor, "#b *c"],
    "expression": Float32[Tensor, "a b a+b 2*a"],
    "array": Float32[np.ndarray, "b 2"],
    "any library": Float32[Any, "b"],
    "parameter": Float32[nn.Parameter, "b"],
    "tensor": Tensor,
    "nn.Parameter": nn.Parameter,
    "list": list[Row],
    "sequence": Sequence[Row],
    "tuple": tuple[Row, Grid, int],
    "tuple of any length": tuple[Row, ...],
    "dict": dict[str, Row],
    "ordered dict": collections.OrderedDict[str, Row],
    "nested": dict[str, list[tuple[Row, int]]],
    "optional": Optional[Row],  # noqa: UP045
    "union": Row | Int[Tensor, "b c"],
    "annotated": Annotated[Row, "documented"],
    "type variable": Bound,
    "dataclass": Sample,
    "named tuple": Pair,
    "typed dict": Batch,
    "list of dataclasses": list[Sample],
}


@pytest.mark.thin(4)
@pytest.mark.parametrize("hint", HINTS.values(), ids=HINTS)
def test_from_type_draws_values_that_keep_the_hint(hint):
    holds(st.from_type(hint), lambda value: check(value, hint, mode="strict"), 15)


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "hint", [Grid, Float[Tensor, "b"], Shaped[Tensor, "..."], Float32[np.ndarray, "b"], Float32[Any, "b"]], ids=str
)
def test_jaxtyping_accepts_them_too(hint):
    def law(value):
        assert isinstance(value, hint)

    holds(st.from_type(hint), law, 60)


def test_from_type_draws_what_tensors_draws():
    """NaN, empty axes, layouts and every dtype."""
    values = drawn(st.from_type(Float[Tensor, "b c"]), 300)
    assert {t.dtype for t in values} >= {torch.float32, torch.float64, torch.float16, torch.bfloat16}
    assert any(t.numel() == 0 for t in values)
    assert any(not t.is_contiguous() for t in values)
    assert any(t.dtype in (torch.float32, torch.float64, torch.bfloat16) and t.isnan().any() for t in values)
    assert {t.shape[0] for t in values} >= {0, 1, 2, 3}


def test_every_option_of_a_union_is_drawn():
    assert {value is None for value in drawn(st.from_type(Row | None))} == {False, True}
    assert {value.dtype for value in drawn(st.from_type(Row | Int64[Tensor, "b"]))} == {torch.float32, torch.int64}


def test_arrays_are_arrays():
    holds(st.from_type(Float32[np.ndarray, "b c"]), lambda a: isinstance(a, np.ndarray) or 1 / 0)


# ---------------------------------------------------------------- axes that agree within a test


def mixed(x: Grid, y: Float32[Tensor, "c"], *, z: Float32[Tensor, "b"]):
    assert x.shape == (z.shape[0], y.shape[0])
    return x.shape


def test_builds_fills_the_arguments_of_a_function_with_axes_that_agree():
    shapes = set(drawn(st.builds(mixed), 60))
    assert len(shapes) > 10
    assert len({shape[0] for shape in shapes}) > 3


def test_builds_takes_some_arguments_from_the_caller():
    ones = torch.ones(4, 3)
    with_mine = st.builds(lambda x, y: (x, y), x=st.just(ones), y=st.from_type(Float32[Tensor, "c"]))
    holds(with_mine, lambda pair: pair[0] is ones or 1 / 0, 10)


@pytest.mark.usefixtures("strict")
def test_builds_of_an_enforced_function():
    @enforce
    def outer(x: Float[Tensor, "a"], y: Float[Tensor, "b"]) -> Float[Tensor, "a b"]:
        return x[:, None].to(torch.float32) * y.to(torch.float32)

    holds(st.builds(outer), lambda product: product.dim() == 2 or 1 / 0, 40)
    assert dtypeguard.casts() == []


def test_builds_of_a_method():
    class Scale:
        def by(self, x: Grid, y: Float32[Tensor, "c"]):
            return x * y

    holds(st.builds(Scale().by), lambda product: check(product, Grid, mode="strict"), 20)


@pytest.mark.parametrize("make", [lambda: st.builds(Sample), lambda: st.from_type(Sample)], ids=["builds", "from_type"])
def test_the_fields_of_a_dataclass_agree(make):
    holds(make(), lambda sample: sample.x.shape[0] == sample.y.shape[0] or 1 / 0)


def test_the_items_of_a_container_agree():
    holds(st.from_type(list[Row]), lambda rows: len({len(row) for row in rows}) <= 1 or 1 / 0, 15)
    holds(st.from_type(dict[str, Row]), lambda rows: len({len(row) for row in rows.values()}) <= 1 or 1 / 0, 15)
    holds(st.from_type(tuple[Row, Grid]), lambda pair: pair[0].shape[0] == pair[1].shape[0] or 1 / 0)


def test_expressions_agree_with_what_other_arguments_have():
    pairs = st.tuples(st.from_type(Grid), st.from_type(Float32[Tensor, "b+c b*c"]))

    def law(pair):
        b, c = pair[0].shape
        assert pair[1].shape == (b + c, b * c)

    holds(pairs, law)


def test_an_expression_alone_has_a_size_for_its_names():
    sizes = {value.shape[0] for value in drawn(st.from_type(Float32[Tensor, "b+1"]))}
    assert 0 not in sizes
    assert len(sizes) > 2


def test_variadic_names_agree():
    pairs = st.tuples(st.from_type(Float32[Tensor, "*b"]), st.from_type(Float32[Tensor, "*b c"]))
    holds(pairs, lambda pair: pair[0].shape == pair[1].shape[:-1] or 1 / 0)


def test_broadcast_names_broadcast():
    pairs = st.tuples(st.from_type(Float32[Tensor, "#b c"]), st.from_type(Float32[Tensor, "#b c"]))
    assert len({torch.broadcast_shapes(x.shape, y.shape) for x, y in drawn(pairs)}) > 3


@given(...)
@settings(max_examples=40, deadline=None)
def test_given_reads_all_annotations(x: Grid, y: Float32[Tensor, "c"]):
    assert x.shape[1] == y.shape[0]


@given(y=..., x=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_given_reads_one_annotation(x: int, y: Grid):
    assert y.dim() == 2
    assert x in range(4)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_draws_inside_a_test_agree(data):
    x = data.draw(st.from_type(Grid))
    assert data.draw(st.from_type(Float32[Tensor, "c"])).shape == x.shape[1:]


# ---------------------------------------------------------------- what others registered


class Foreign:
    """An array type of a library of which no values are made."""

    shape, dtype = (), "float32"


def test_arrays_of_other_libraries_are_left_to_hypothesis():
    """The same warning as without the plugin: it makes an instance of jaxtyping's class, which cannot be."""
    with pytest.warns(SmallSearchSpaceWarning), pytest.raises(RuntimeError, match="cannot be instantiated"):
        drawn(st.from_type(Float32[Foreign, "b"]), 5)


def test_what_a_user_registers_for_an_annotation_counts():
    mine = Float32[Tensor, "mine 2"]
    ones = torch.ones(5, 2)
    st.register_type_strategy(mine, st.just(ones))
    holds(st.from_type(mine), lambda value: value is ones or 1 / 0, 10)
    holds(st.from_type(list[mine]), lambda values: all(value is ones for value in values) or 1 / 0, 10)
    holds(st.from_type(Float32[Tensor, "mine 3"]), lambda value: value.shape[1] == 3 or 1 / 0, 10)


def test_what_is_not_jaxtypings_is_left_alone():
    class Plain:
        def __init__(self, n: int):
            self.n = n

    holds(st.from_type(Plain), lambda value: type(value) is Plain or 1 / 0, 10)
    holds(st.from_type(int), lambda value: type(value) is int or 1 / 0, 10)
    holds(st.from_type(np.ndarray), lambda value: isinstance(value, np.ndarray) or 1 / 0, 10)


def test_functions_that_return_tensors():
    def law(make):
        check(make(1), Row, mode="strict")

    holds(st.from_type(Callable[[int], Row]), law, 20)


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (Float32[Tensor, "{n}"], "use inputs_for"),
        (Float32[Tensor, "-1"], "-1"),
        (Float32[Tensor, "?b"], "?b"),
        (Float32[Tensor, "b -b-1"], "no sizes of its axes"),
    ],
    ids=str,
)
def test_an_annotation_that_nothing_keeps_is_an_error_that_says_so(hint, said):
    with pytest.raises(AnnotationError) as caught:
        drawn(st.from_type(hint), 5)
    assert said in str(caught.value)


def test_a_strategy_shows_its_annotation():
    assert 'Float32[Tensor, "b c"]' in repr(st.from_type(Grid))
    assert len(repr(st.from_type(Grid))) < 100


# ---------------------------------------------------------------- in a process of its own


def run(code, *flags, **environment):
    """What a new interpreter prints."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        env={**{k: v for k, v in os.environ.items() if not k.startswith("HYPOTHESIS")}, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT / "tests",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1], done.stderr


def test_importing_hypothesis_loads_neither_torch_nor_dtypeguard():
    out, err = run(
        """
        import sys
        import hypothesis
        import hypothesis.strategies as st
        assert "dtypeguard_hypothesis" in sys.modules

        @hypothesis.settings(database=None, max_examples=5)
        @hypothesis.given(st.from_type(list[int]), st.builds(int))
        def test(x, y): ...

        test()
        print([name for name in ("torch", "dtypeguard", "jaxtyping", "beartype", "numpy") if name in sys.modules])
        """,
        "-W",
        "error",
    )
    assert out == ["[]"]
    assert err == ""


def test_the_entry_point_costs_milliseconds():
    """The best of three, beyond what hypothesis loads anyway before it resolves its first type."""
    code = """
        import time
        import hypothesis, hypothesis.strategies, hypothesis.strategies._internal.types
        start = time.perf_counter()
        import dtypeguard_hypothesis
        dtypeguard_hypothesis.register()
        print(time.perf_counter() - start)
    """
    assert min(float(run(code, HYPOTHESIS_NO_PLUGINS="1")[0][0]) for _ in range(3)) < 0.02


def test_an_annotation_works_as_soon_as_hypothesis_is_imported():
    out, err = run(
        """
        import sys
        from hypothesis import given, settings, strategies as st
        from jaxtyping import Float32
        from torch import Tensor

        assert "dtypeguard" not in sys.modules
        shapes = set()

        @settings(database=None, max_examples=20, deadline=None)
        @given(st.from_type(Float32[Tensor, "b 3"]), st.from_type(Float32[Tensor, "b"]))
        def test(x, y):
            shapes.add(x.shape == (len(y), 3))

        test()
        print(shapes)
        """,
        "-W",
        "error",
    )
    assert out == ["{True}"]
    assert err == ""


@pytest.mark.slow
def test_without_plugins_hypothesis_says_its_own_word():
    out, _ = run(
        """
        import sys
        from hypothesis import given, settings, strategies as st
        assert "dtypeguard_hypothesis" not in sys.modules
        from jaxtyping import Float32
        from torch import Tensor
        from dtypeguard.testing import tensors, inputs_for, violations_of

        def drawn(strategy):
            values = []
            settings(database=None, max_examples=5, deadline=None)(given(strategy)(lambda x: values.append(x)))()
            return values

        try:
            drawn(st.from_type(Float32[Tensor, "b 3"]))
        except Exception as error:
            print(error)

        def fn(x: Float32[Tensor, "b 3"]): ...

        print({x.shape[1] for x in drawn(tensors(Float32[Tensor, "b 3"]))})
        print({i.args[0].shape[1] for i in drawn(inputs_for(fn))})
        print(len(drawn(violations_of(Float32[Tensor, "b 3"]))))
        """,
        HYPOTHESIS_NO_PLUGINS="1",
    )
    told = "jaxtyping annotations cannot be instantiated -- they should be used for type hints only."
    assert out == [told, "{3}", "{3}", "5"]


@pytest.mark.parametrize("change", ["del types._global_extra_lookup", "types._global_extra_lookup = None"])
def test_where_hypothesis_has_no_such_lookup_the_advice_is_given_and_nothing_fails(change):
    """A version of hypothesis to come."""
    out, err = run(
        f"""
        import os
        import hypothesis
        from hypothesis.strategies._internal import types
        {change}
        del os.environ["HYPOTHESIS_NO_PLUGINS"]
        hypothesis.entry_points.run()
        import sys
        print("dtypeguard_hypothesis" in sys.modules, "torch" in sys.modules)
        """,
        "-W",
        "error",
        HYPOTHESIS_NO_PLUGINS="1",
    )
    assert out == ["True False"]
    assert "write dtypeguard.testing.tensors(annotation) for st.from_type(annotation)" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_where_hypothesis_has_another_lookup_tensors_still_work():
    out, err = run(
        """
        import os, types as python
        import hypothesis
        from hypothesis.strategies._internal import types
        types._global_extra_lookup = python.MappingProxyType(dict(types._global_extra_lookup))
        del os.environ["HYPOTHESIS_NO_PLUGINS"]
        hypothesis.entry_points.run()

        from jaxtyping import Float32
        from torch import Tensor
        from dtypeguard.testing import tensors

        @hypothesis.settings(database=None, max_examples=5, deadline=None)
        @hypothesis.given(tensors(Float32[Tensor, "b 3"]))
        def test(x):
            assert x.shape[1] == 3

        test()
        print("done")
        """,
        HYPOTHESIS_NO_PLUGINS="1",
    )
    assert out == ["done"]
    assert "testing.tensors" in err


def test_without_the_printers_hypothesis_imports_all_the_same():
    out, _ = run(
        """
        import os
        import hypothesis
        from hypothesis.vendor import pretty
        del pretty.for_type_by_name
        del os.environ["HYPOTHESIS_NO_PLUGINS"]
        hypothesis.entry_points.run()
        print("done")
        """,
        HYPOTHESIS_NO_PLUGINS="1",
    )
    assert out == ["done"]


def test_registering_twice_changes_nothing():
    out, _ = run(
        """
        import hypothesis, dtypeguard_hypothesis
        from hypothesis.strategies._internal import types
        before = {**types._global_extra_lookup}
        dtypeguard_hypothesis.register()
        print(types._global_extra_lookup == before, "numpy" in before)
        """
    )
    assert out == ["True True"]


# ---------------------------------------------------------------- how it is installed


def test_the_entry_point_is_installed():
    points = {point.name: point.value for point in importlib.metadata.entry_points(group="hypothesis")}
    assert points["dtypeguard"] == "dtypeguard_hypothesis:register"


def test_the_entry_point_and_its_file_are_in_the_wheel():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["hypothesis"] == {"dtypeguard": "dtypeguard_hypothesis:register"}
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "src/dtypeguard_hypothesis.py" in wheel["only-include"]
    assert (ROOT / "src" / "dtypeguard_hypothesis.py").is_file()
    assert any(text.startswith("hypothesis") for text in project["project"]["optional-dependencies"]["hypothesis"])


@pytest.mark.slow
def test_hypothesis_is_no_dependency_of_the_package():
    out, _ = run(
        """
        import sys
        sys.modules["hypothesis"] = None
        import dtypeguard
        print("hypothesis" in sys.modules and sys.modules["hypothesis"] is None)
        """
    )
    assert out == ["True"]


# ---------------------------------------------------------------- how tensors print


def empty(dtype):
    try:
        return torch.zeros((2, 3), dtype=dtype)
    except (RuntimeError, NotImplementedError):
        pass
    try:
        return torch.empty((2, 3), dtype=dtype)
    except (RuntimeError, NotImplementedError):
        return torch._empty_affine_quantized((2, 3), scale=1.0, zero_point=0, dtype=dtype)


ODD = pytest.mark.filterwarnings(
    "ignore:ComplexHalf support is experimental:UserWarning",
    "ignore:.*quantized.*:DeprecationWarning",
    "ignore:.*uantiz.*:UserWarning",
)


@pytest.mark.thin(3)
@ODD
@pytest.mark.parametrize("dtype", allocatable(), ids=str)
def test_a_tensor_of_every_dtype_prints(dtype):
    text = pretty(empty(dtype))
    assert text
    assert "\n\n" not in text


@pytest.mark.thin(3)
@ODD
@pytest.mark.parametrize("dtype", [d for d in allocatable() if not str(d).startswith("torch.q")], ids=str)
def test_the_strides_of_a_tensor_that_is_not_contiguous_are_shown_in_every_dtype(dtype):
    assert "strides=(1, 3)" in pretty(empty(dtype).t())
    assert "strides" not in pretty(empty(dtype))


class Sub(Tensor): ...


class Unprintable(Tensor):
    def __repr__(self, *, tensor_contents=None):
        raise ValueError("no")


def fake():
    with FakeTensorMode():
        return torch.ones(2, 3).t()


PRINTED = {
    "float32": (torch.ones(2), "tensor([1., 1.])"),
    "float64": (torch.ones(2, dtype=torch.float64), "tensor([1., 1.], dtype=torch.float64)"),
    "transposed": (torch.ones(2, 3).t(), "strides=(1, 3))"),
    "strided": (torch.arange(6)[::2], "tensor([0, 2, 4], strides=(2,))"),
    "expanded": (torch.ones(1).expand(2), "tensor([1., 1.], strides=(0,))"),
    "transposed float64": (torch.ones(2, 2, dtype=torch.float64).t(), "dtype=torch.float64, strides=(1, 2))"),
    "requires grad": (torch.ones(1, requires_grad=True), "tensor([1.], requires_grad=True)"),
    "parameter": (nn.Parameter(torch.ones(2, 3).t()), "requires_grad=True, strides=(1, 3))"),
    "buffer": (nn.Buffer(torch.ones(2, 2).t()), "strides=(1, 2))"),
    "subclass": (torch.ones(2, 3).t().as_subclass(Sub), "strides=(1, 3))"),
    "meta": (torch.ones(2, 3, device="meta").t(), "tensor(..., device='meta', size=(3, 2), strides=(1, 3))"),
    "fake": (fake(), "FakeTensor(..., size=(3, 2), strides=(1, 3))"),
    "sparse": (torch.eye(2).to_sparse(), "layout=torch.sparse_coo"),
    "scalar": (torch.tensor(1.0), "tensor(1.)"),
    "empty": (torch.ones(0, 3).t(), "tensor([], size=(3, 0))"),
    "large": (torch.ones(2000, 2).t(), "strides=(1, 2))"),
    "uninitialized": (nn.UninitializedParameter(), "Uninitialized"),
    "that cannot print": (torch.ones(2, 3).as_subclass(Unprintable), "f32[2,3] on cpu"),
    "in a list": ([torch.ones(2, 2).t()], "strides=(1, 2))]"),
    "in a dict": ({"a": torch.ones(2, 2).t()}, "strides=(1, 2))}"),
    "jagged": (torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged), "NestedTensor(size=(1, j"),
}


@pytest.mark.parametrize(("value", "end"), PRINTED.values(), ids=PRINTED)
def test_a_tensor_prints_with_what_is_odd_about_it(value, end):
    text = pretty(value)
    assert end in text
    assert len(text) < 2000


def test_inside_transforms_tensors_print():
    texts = []
    torch.vmap(lambda x: texts.append(pretty(x)) or x)(torch.ones(2, 3))
    torch.func.grad(lambda x: texts.append(pretty(x)) or x.sum())(torch.ones(2))
    assert ["BatchedTensor" in texts[0], "GradTrackingTensor" in texts[1]] == [True, True]


def note_of(strategy, condition):
    @settings(max_examples=500, deadline=None, database=None, derandomize=True, phases=UNEXPLAINED)
    @given(strategy)
    def test(x):
        assert condition(x)

    with pytest.raises(AssertionError) as caught:
        test()
    return "\n".join(caught.value.__notes__)


def test_a_failing_example_shows_dtype_and_strides():
    assert "x=tensor([[0.]])" in note_of(st.from_type(Grid), lambda x: False)
    doubles = st.from_type(Float[Tensor, "b"])
    assert "x=tensor([0.], dtype=torch.float64)" in note_of(doubles, lambda x: x.dtype is not torch.float64)
    assert "strides=" in note_of(st.from_type(Grid), lambda x: x.is_contiguous())


def prints(value):
    try:
        return bool(repr(value))
    except (RuntimeError, NotImplementedError):
        return False


@ODD
def test_a_failing_example_of_a_dtype_that_does_not_print_is_still_shown():
    assert "on cpu" in note_of(st.from_type(Shaped[Tensor, "b"]), prints)


@ODD
def test_a_failing_example_inside_a_dataclass_prints_in_every_dtype():
    @dataclass
    class Odd:
        x: Shaped[Tensor, "b"]

    assert "on cpu" in note_of(st.from_type(Odd), lambda odd: prints(odd.x))


@ODD
def test_a_failing_call_shows_strides_and_prints_in_every_dtype():
    def fn(x: Shaped[Tensor, "b"], y: Grid): ...

    assert "strides=" in note_of(inputs_for(fn), lambda inputs: inputs.args[1].is_contiguous())
    assert "on cpu" in note_of(inputs_for(fn), lambda inputs: prints(inputs.args[0]))


@ODD
def test_a_breach_prints_in_every_dtype():
    assert "on cpu" in note_of(violations_of(Row), lambda breach: prints(breach.value))


def test_dataclasses_of_tensors_compare_by_identity_in_what_is_drawn():
    """Nothing on the way compares tensors, whose truth is ambiguous."""
    holds(st.lists(st.from_type(Sample), max_size=2), lambda samples: [dataclasses.asdict(s) for s in samples], 20)
