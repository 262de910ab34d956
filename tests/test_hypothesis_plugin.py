"""hypothesis learns jaxtyping's annotations by an entry point: `st.from_type`, `st.builds`, and how tensors print."""

import importlib.metadata
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import SmallSearchSpaceWarning
from hypothesis.vendor.pretty import pretty
from jaxtyping import Float, Float32, Int, Num, Shaped
from strategies import drawn, holds
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from dtypeguard import AnnotationError, check
from dtypeguard.testing import inputs_for
from dtypeguard.testing._elements import allocatable

ROOT = Path(__file__).parent.parent
Row = Float32[Tensor, "b"]
Grid = Float32[Tensor, "b c"]
UNEXPLAINED = (Phase.generate, Phase.shrink)  # explanations are found by tracing, which is slow


# ---------------------------------------------------------------- st.from_type


@dataclass
class Sample:
    x: Row
    y: Grid
    n: int = 0


HINTS = [
    Grid, Float[Tensor, "b"], Shaped[Tensor, "..."], Num[Tensor, "#b *c"], Float32[Tensor, "a b a+b 2*a"],
    Float32[np.ndarray, "b 2"], Float32[Any, "b"], Float32[nn.Parameter, "b"], Tensor, nn.Parameter, list[Row],
    tuple[Row, Grid, int], dict[str, list[tuple[Row, int]]], Row | None, Row | Int[Tensor, "b c"],
    Annotated[Row, "documented"], TypeVar("Bound", bound=Row), Sample, Callable[[int], Row],
]  # fmt: skip


@pytest.mark.thin(3)
@pytest.mark.parametrize("hint", HINTS, ids=str)
def test_from_type_draws_values_that_keep_the_hint(hint):
    """In one test axes of one name are of one size, so a container's agree."""
    holds(st.from_type(hint), lambda value: check(value, hint, mode="strict"), 20)


def test_from_type_draws_what_tensors_draws():
    """NaN, empty axes, layouts and every dtype."""
    values = drawn(st.from_type(Float[Tensor, "b c"]), 300)
    assert {t.dtype for t in values} >= {torch.float32, torch.float64, torch.float16, torch.bfloat16}
    assert any(t.numel() == 0 for t in values)
    assert any(not t.is_contiguous() for t in values)
    assert any(t.dtype in (torch.float32, torch.float64, torch.bfloat16) and t.isnan().any() for t in values)
    assert {value is None for value in drawn(st.from_type(Row | None))} == {False, True}


# ---------------------------------------------------------------- axes that agree within a test


def mixed(x: Grid, y: Float32[Tensor, "c"], *, z: Float32[Tensor, "b"]):
    assert x.shape == (z.shape[0], y.shape[0])
    return x.shape


def test_builds_fills_the_arguments_of_a_function_with_axes_that_agree():
    shapes = set(drawn(st.builds(mixed), 60))
    assert len(shapes) > 10
    assert len({shape[0] for shape in shapes}) > 3


@pytest.mark.parametrize(
    ("hints", "agree"),
    [
        ((Grid, Float32[Tensor, "b+c b*c"]), lambda x, y: y == (sum(x), x[0] * x[1])),
        ((Float32[Tensor, "*b"], Float32[Tensor, "*b c"]), lambda x, y: x == y[:-1]),
        ((Float32[Tensor, "#b c"], Float32[Tensor, "#b c"]), lambda x, y: x[1] == y[1] and len({x[0], y[0], 1}) < 3),
        ((Sample, Row), lambda x, y: x == y),
    ],
    ids=["expressions", "variadic axes", "axes that broadcast", "a dataclass"],
)
def test_all_that_is_drawn_in_one_test_agrees(hints, agree):
    pairs = drawn(st.tuples(*map(st.from_type, hints)))
    shapes = [[tuple(getattr(value, "x", value).shape) for value in pair] for pair in pairs]
    assert all(agree(*both) for both in shapes)
    assert len({both[0] for both in shapes}) > 3


def test_an_expression_alone_has_a_size_for_its_names():
    sizes = {value.shape[0] for value in drawn(st.from_type(Float32[Tensor, "b+1"]))}
    assert 0 not in sizes
    assert len(sizes) > 2


@given(...)
@settings(max_examples=40, deadline=None)
def test_given_reads_all_annotations(x: Grid, y: Float32[Tensor, "c"]):
    assert x.shape[1] == y.shape[0]


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
        assert "dtypeguard._plugins.hypothesis" in sys.modules

        @hypothesis.settings(database=None, max_examples=5)
        @hypothesis.given(st.from_type(list[int]), st.builds(int))
        def test(x, y): ...

        test()
        names = "torch", "dtypeguard._core.base.config", "jaxtyping", "beartype", "numpy"
        print([name for name in names if name in sys.modules])
        """,
        "-W",
        "error",
    )
    assert out == ["[]"]
    assert err == ""


def test_an_annotation_works_as_soon_as_hypothesis_is_imported():
    out, err = run(
        """
        import sys
        from hypothesis import given, settings, strategies as st
        from jaxtyping import Float32
        from torch import Tensor

        assert "dtypeguard.testing" not in sys.modules
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


@pytest.mark.parametrize(
    "change",
    ["del types._global_extra_lookup", "types._global_extra_lookup = None", "del pretty.for_type_by_name"],
)
def test_where_hypothesis_has_no_such_place_the_advice_is_given_and_nothing_fails(change):
    """A version of hypothesis to come."""
    out, err = run(
        f"""
        import os, sys
        import hypothesis
        from hypothesis.strategies._internal import types
        from hypothesis.vendor import pretty
        {change}
        del os.environ["HYPOTHESIS_NO_PLUGINS"]
        hypothesis.entry_points.run()
        print("dtypeguard._plugins.hypothesis" in sys.modules, "torch" in sys.modules)
        """,
        "-W",
        "error",
        HYPOTHESIS_NO_PLUGINS="1",
    )
    assert out == ["True False"]
    advice = "write dtypeguard.testing.tensors(annotation) for st.from_type(annotation)"
    assert (advice in err) is ("lookup" in change)
    assert "Traceback" not in err


# ---------------------------------------------------------------- how it is installed


def test_the_entry_point_is_installed():
    points = {point.name: point.value for point in importlib.metadata.entry_points(group="hypothesis")}
    assert points["dtypeguard"] == "dtypeguard._plugins.hypothesis:register"


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
    "ignore:.*Complex.* support is experimental:UserWarning",
    "ignore:.*quantized.*:DeprecationWarning",
    "ignore:.*uantiz.*:UserWarning",
)


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
    "transposed": (torch.ones(2, 3).t(), "strides=(1, 3))"),
    "strided": (torch.arange(6)[::2], "tensor([0, 2, 4], strides=(2,))"),
    "parameter": (nn.Parameter(torch.ones(2, 3).t()), "requires_grad=True, strides=(1, 3))"),
    "meta": (torch.ones(2, 3, device="meta").t(), "tensor(..., device='meta', size=(3, 2), strides=(1, 3))"),
    "fake": (fake(), "FakeTensor(..., size=(3, 2), strides=(1, 3))"),
    "empty": (torch.ones(0, 3).t(), "tensor([], size=(3, 0))"),
    "large": (torch.ones(2000, 2).t(), "strides=(1, 2))"),
    "uninitialized": (nn.UninitializedParameter(), "Uninitialized"),
    "that cannot print": (torch.ones(2, 3).as_subclass(Unprintable), "f32[2,3] on cpu"),
    "in a list": ([torch.ones(2, 2).t()], "strides=(1, 2))]"),
    "jagged": (torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged), "NestedTensor(size=(1, j"),
}


@pytest.mark.parametrize(("value", "end"), PRINTED.values(), ids=PRINTED)
def test_a_tensor_prints_with_what_is_odd_about_it(value, end):
    text = pretty(value)
    assert end in text
    assert len(text) < 2000


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
def test_a_failing_call_shows_strides_and_prints_in_every_dtype():
    def fn(x: Shaped[Tensor, "b"], y: Grid): ...

    assert "strides=" in note_of(inputs_for(fn), lambda inputs: inputs.args[1].is_contiguous())
    assert "on cpu" in note_of(inputs_for(fn), lambda inputs: prints(inputs.args[0]))
