"""`isinstance(y, Float32[Tensor, "n"])` in a body: it sees the axes of the call, and the result sees what it binds."""

import functools

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor, nn

from dtypeguard import CastWarning, ContractWarning, ShapeError, enforce, guard
from dtypeguard._core.wrap.build import signed

Row = Float32[Tensor, "n"]


def f32(n=3):
    return torch.arange(n, dtype=torch.float32)


def f64(n=3):
    return torch.arange(n, dtype=torch.float64)


@enforce
def fits(x: Float32[Tensor, "b *s"], y: Row | None = None, *, item):
    return isinstance(item, Float32[Tensor, "*s"]), isinstance(item, Float32[Tensor, "n n"])


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["right", "repaired"])
@pytest.mark.parametrize(
    ("x", "y", "item", "expected"),
    [
        ((2, 3, 4), None, (3, 4), (True, False)),
        ((2, 3, 4), None, (4, 3), (False, False)),
        ((2, 3, 4), None, (3, 3), (False, True)),  # `n` is not bound
        ((2, 3, 4), 4, (3, 3), (False, False)),
        ((2, 3, 4), 3, (3, 3), (False, True)),
        ((2,), None, (), (True, False)),  # `*s` is bound to no axis at all
        ((2, 1, 4), None, (3, 4), (False, False)),  # nor does it broadcast
    ],
)
def test_isinstance_in_an_enforced_body_sees_the_axes_of_the_call(x, y, item, expected, dtype):
    assert fits(torch.zeros(x, dtype=dtype), y and f32(y), item=torch.zeros(item)) == expected


# The result's annotation; what the body asks; whether a result of size 3 passes where the body has bound 7.
BINDS = [
    ("o", "o", False), ("o", "b o", False), ("*s", "*s", False), ("*s", "b *s", False), ("#o", "o", False),
    ("o+0", "o", False), ("free", "o", True), ("...", "o", True),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["strict", "lenient", "warn", "off"])
@pytest.mark.parametrize(("dims", "asked", "passes"), BINDS)
def test_axes_that_isinstance_binds_in_the_body_hold_for_the_result(dims, asked, passes, mode):
    lead = (2,) if asked.startswith("b ") else ()
    dims = f"b {dims}" if lead else dims

    @enforce(mode=mode)
    def f(x: Float32[Tensor, "b 3"], size: int, ask: bool) -> Float32[Tensor, dims]:
        assert not ask or isinstance(torch.zeros(*lead, 7), Float32[Tensor, asked])
        return torch.zeros(*lead, size)

    x = torch.zeros(2, 3)
    assert f(x, 7, True).shape == (*lead, 7)
    if not dims.endswith("+0") or mode == "off":  # else `o` is not bound
        assert f(x, 3, False).shape == (*lead, 3)
    if passes or mode == "off":
        assert f(x, 3, True).shape == (*lead, 3)
    elif mode == "warn":
        with pytest.warns(ContractWarning, match="result"):
            f(x, 3, True)
    else:
        with pytest.raises(ShapeError, match="result"):
            f(x, 3, True)


def test_what_the_body_has_bound_is_named_as_such(strict):
    @enforce
    def f(x: Float32[Tensor, "b"]) -> Float32[Tensor, "o"]:
        assert isinstance(torch.zeros(7), Float32[Tensor, "o"])
        return x

    with pytest.raises(ShapeError, match=r"the result has axis o=3, but o=7 in `isinstance`") as caught:
        f(f32(3))
    assert caught.value.axes == {"b": 3, "o": 7}


def test_a_repaired_call_holds_its_result_to_the_axes_of_the_body():
    @enforce
    def f(x: Float32[Tensor, "b"], size: int) -> Float32[Tensor, "o"]:
        assert isinstance(torch.zeros(7), Float32[Tensor, "o"])
        return torch.zeros(size)

    def call(x, size):
        return len(f(x, size))

    with pytest.warns(CastWarning):
        assert call(f64(3), 7) == 7
    for x in (f64(3), f32(3)):  # by the plan of the repair, and without one
        assert call(x, 7) == 7
        with pytest.raises(ShapeError, match="o=7 in `isinstance`"):
            call(x, 3)


def test_an_argument_that_was_left_out_leaves_its_axes_to_the_body(strict):
    @enforce
    def f(x: Float32[Tensor, "n"] | None, y: Tensor) -> Float32[Tensor, "n"]:
        return y if isinstance(y, Float32[Tensor, "n"]) else f32(2)

    assert len(f(None, f32(3))) == 3
    assert len(f(f32(2), f32(3))) == 2
    with pytest.raises(ShapeError):
        f(f32(4), f32(3))


def _is_row(y):
    return isinstance(y, Row)


def _all_rows(ys):
    return [_is_row(y) for y in ys] == [True] * len(ys)


class Asks:
    @enforce
    def by_method(self, x: Row, y: Tensor) -> bool:
        return self._is(y)

    @enforce
    def by_a_later_function(self, x: Row, y: Tensor) -> bool:
        return _is_a_row(y)

    def _is(self, y):
        return isinstance(y, Row)


def _is_a_row(y):
    return isinstance(y, Float32[Tensor, "n"])


def _length(x):
    return len(x) if isinstance(x, Tensor) else 0


def _decorated(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args)

    return wrapper


def _asking():
    """Bodies that ask in roundabout ways whether `y` is of `x`'s length."""

    def own(y):
        return isinstance(y, Row)

    @enforce
    def by_expression(x: Row, y: Tensor) -> bool:
        return all(isinstance(each, Row) for each in [y])

    @enforce
    def by_comprehension(x: Row, y: Tensor) -> bool:
        return [isinstance(each, Row) for each in [y]] == [True]

    @enforce
    def by_lambda(x: Row, y: Tensor) -> bool:
        return (lambda: isinstance(y, Row))()

    @enforce
    def by_helper(x: Row, y: Tensor) -> bool:
        return _is_row(y)

    @enforce
    def by_helpers_of_helpers(x: Row, y: Tensor) -> bool:
        return _all_rows([y])

    @enforce
    def by_closure(x: Row, y: Tensor) -> bool:
        return own(y)

    @enforce
    @_decorated
    def by_decorated(x: Row, y: Tensor) -> bool:
        return isinstance(y, Row)

    @enforce(autocast="disable")
    def without_autocast(x: Row, y: Tensor) -> bool:
        return isinstance(y, Row)

    class Net(nn.Module):
        @enforce
        def forward(self, x: Row, y: Tensor) -> bool:
            return isinstance(y, Row)

    class Child(Net):
        weight = nn.Parameter(torch.ones(1))

    functions = [by_expression, by_comprehension, by_lambda, by_helper, by_helpers_of_helpers, by_closure, by_decorated]
    methods = [Asks().by_method, Asks().by_a_later_function]
    return [*functions, *methods, without_autocast, Net(), guard(Net()), guard(Child())]


@pytest.mark.parametrize("f", _asking(), ids=lambda f: getattr(f, "__name__", type(f).__name__))
def test_whoever_asks_isinstance_sees_the_axes_of_the_call(f, strict):
    assert f(f32(3), f32(3))
    assert not f(f32(3), f32(4))
    assert isinstance(f32(7), Row)


def test_who_asks_for_other_classes_pays_for_no_scope():
    @enforce
    def f(x: Row) -> Row:
        return nn.functional.relu(x) + len(_length(x) * " ")

    assert not signed(f)[1].scoped
    assert signed(Asks.by_method)[1].scoped
