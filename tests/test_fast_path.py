"""The way of a call with nothing wrong, or with what was mended before: the reference checker is not asked.

That the two implementations agree is tested elsewhere. Here it is about when the slow one runs at all: a generated
check that says "no" too often, or a plan that never applies, gives the same results and costs a hundred times as much.
"""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, NotRequired, TypedDict

import pytest
import torch
from jaxtyping import Bool, Float, Float32, Int, Num, Shaped
from support import BF16, F16, F32, F64
from torch import Tensor, nn

import dtypeguard
from dtypeguard import DtypeGuardError, enforce, guard
from dtypeguard._core.repair import settle as _settle
from dtypeguard._core.wrap import build as _build

pytestmark = pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")


@pytest.fixture
def asked(monkeypatch):
    """One entry for each call that the reference checker got."""
    calls, check = [], _settle.check

    def spy(contract, values):
        calls.append(contract.function)
        return check(contract, values)

    monkeypatch.setattr(_settle, "check", spy)
    return calls


def f(*shape, dtype=F32):
    return torch.ones(shape, dtype=dtype)


# ---------------------------------------------------------------- nothing is wrong


class Pair(NamedTuple):
    image: Float32[Tensor, "h w"]
    label: Int[Tensor, ""]


@dataclasses.dataclass
class Batch:
    image: Float32[Tensor, "h w"]
    name: str = "none"


FUNCTIONS = []


def right(*args, **kwargs):
    """A function, and arguments that keep its contract."""

    def add(function):
        FUNCTIONS.append(pytest.param(function, args, kwargs, id=function.__name__))
        return function

    return add


@right(f(2, 3))
@enforce
def concrete(x: Float32[Tensor, "b c"]):
    return x


@right(f(2, 3, dtype=BF16))
@enforce
def family(x: Float[Tensor, "b c"]):
    return x


@right(torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.complex64))
@enforce
def other_families(x: Int[Tensor, "n"], y: Bool[Tensor, "n"], z: Num[Tensor, "n"]):
    return x


@right(f(2).to(torch.float8_e5m2))
@enforce
def any_dtype(x: Shaped[Tensor, "n"]):
    return x


@right(f(), f(2, 3, 4), f(1, 3))
@enforce
def axes_that_are_not_asked_about(x: Float32[Tensor, ""], y: Float32[Tensor, "..."], z: Float32[Tensor, "_ 3"]):
    return x


@right(f(500, 3), f(3, 500), f(501))
@enforce
def axes_across_arguments(x: Float32[Tensor, "b c"], y: Float32[Tensor, "c b"], z: Float32[Tensor, "b+1"]):
    return x


@right(f(500, 500), f(500, 2, 500))
@enforce
def an_axis_twice(x: Float32[Tensor, "n n"], y: Float32[Tensor, "n _ n"]):
    return x


@right(f(2, 3, 4), f(3, 4, 2), f(2, 3, 4, 2))
@enforce
def several_axes(x: Float32[Tensor, "b *s"], y: Float32[Tensor, "*s b"], z: Float32[Tensor, "b *s b"]):
    return x


@right(f(1, 3), f(7, 3), f(7, 1), f(7, 3))
@enforce
def axes_that_may_be_one(
    x: Float32[Tensor, "#b c"], y: Float32[Tensor, "b c"], z: Float32[Tensor, "b #c"], w: Float32[Tensor, "#b #c"]
):
    return x


@right(f(1), f(3), f(4), f(2))
@enforce
def fixed_and_computed_axes_that_may_be_one(
    x: Float32[Tensor, "#3"], y: Float32[Tensor, "n"], z: Float32[Tensor, "#n+1"], w: Float32[Tensor, "min(n,2)"]
):
    return x


@right(nn.Parameter(f(2)))
@enforce
def a_parameter(x: Float32[nn.Parameter, "n"]):
    return x


@right([f(2), f(2)], (f(2), f(3)), (f(1), f(2), f(3)), {"a": f(4), "b": f(5)})
@enforce
def containers(
    x: list[Float32[Tensor, "n"]],
    y: tuple[Float32[Tensor, "n"], Float32[Tensor, "m"]],
    z: tuple[Float32[Tensor, "_"], ...],
    w: dict[str, Float32[Tensor, "_"]],
):
    return x


@right(Pair(f(2, 3), torch.tensor(1)), Batch(f(2, 3)), [(f(2, 3), {"a": f(1)})])
@enforce
def fields_and_nesting(x: Pair, y: Batch, z: list[tuple[Float32[Tensor, "h w"], dict[str, Float[Tensor, "_"]]]]):
    return x


@right(f(2), None, y=f(2))
@enforce
def options(x: Float32[Tensor, "n"] | None, z: Float32[Tensor, "n"] | None = None, *, y: Float32[Tensor, "n"] = None):
    return x


@right(f(2), f(3), a=f(4))
@enforce
def many(*x: Float32[Tensor, "_"], **y: Float32[Tensor, "_"]):
    return x


@right(f(2), 1, 2, "text", "sum", [1.0], len)
@enforce
def other_hints(
    x: Float32[Tensor, "n"], y: int, z: float, u: str, v: Literal["sum", "mean"], w: Sequence[float], c: Callable
):
    return x


@right(f(2, 3), f(3))
@enforce
def results(x: Float32[Tensor, "b c"], y: Float32[Tensor, "c"]) -> tuple[Float32[Tensor, "b"], Float32[Tensor, "c"]]:
    return x @ y, y


@right(f(2, 3), f(3), 1, torch.ones(2, dtype=torch.int32), "text", [f(3), f(3)], f(3), (f(2), f(3)))
@enforce
def unions(
    x: Float32[Tensor, "b c"] | Float32[Tensor, "c"],
    y: Float32[Tensor, "b c"] | Float32[Tensor, "c"],
    z: Float32[Tensor, "b"] | int | None,
    u: Float[Tensor, "b"] | Int[Tensor, "b"],
    v: Float[Tensor, "b"] | str = "none",
    w: Float[Tensor, "b"] | list[Float[Tensor, "c"]] | int = 3,
    *rest: Float[Tensor, "c"] | tuple[Float[Tensor, "b"], Float[Tensor, "c"]],
) -> Float32[Tensor, "b c"] | Float32[Tensor, "c"]:
    return y


class Row(TypedDict):
    row: Float32[Tensor, "n"]
    rest: NotRequired[Float32[Tensor, "b n"]]
    name: str


@right(f(2, 3), {"row": f(3), "name": "a"}, collections.OrderedDict(row=f(3), rest=f(2, 3), name="b", more=None))
@enforce
def typed_dicts(x: Float32[Tensor, "b n"], y: Row, z: Row) -> Row:
    return z


@right(f(2, 3), f(2), {"row": f(3), "name": "a"})
@enforce
def what_only_the_reference_checks(
    x: Float32[Tensor, "b n"], y: Float32[Tensor, "b"] | Row | list[Float32[Tensor, "n"]], z: Row | list[Row]
) -> Row | list[Row]:
    return z


@right(None)
@enforce
def no_tensor(x: None) -> Float32[Tensor, ""] | None:
    return None


@pytest.mark.parametrize(("function", "args", "kwargs"), FUNCTIONS)
def test_a_function_whose_contract_is_kept_does_not_ask_the_reference(function, args, kwargs, asked):
    with dtypeguard.mode("strict"):
        function(*args, **kwargs)
    assert asked == []


class Net(nn.Module):
    def __init__(self, dtype=F32, other=None, device="cpu", buffers=False):
        super().__init__()
        self.first, self.second = nn.Module(), nn.Module()
        for module, tensor in (
            (self.first, torch.ones(2, dtype=dtype)),
            (self.second, torch.ones(2, dtype=other or dtype, device=device)),
        ):
            if buffers:
                module.register_buffer("weight", tensor)
            else:
                module.weight = nn.Parameter(tensor)

    def forward(self, x, *rest, extra=None, **more):
        return x


class Enforced(Net):
    @enforce
    def forward(self, x: Float[Tensor, "b n"], y: Float32[Tensor, "n"] = None, z: Int[Tensor, "b"] = None):
        return x


class Annotated(Net):
    def forward(self, x: Float[Tensor, "b n"], y: Num[Tensor, "n"] | None = None) -> Float[Tensor, "b n"]:
        return x


class Sub(Tensor):
    pass


half, double, ids = f(2, 3, dtype=BF16), f(2, 3, dtype=F64), torch.ones(2, 3, dtype=torch.int64)
MODULES = {
    "float32": (lambda: guard(Net()), [f(2, 3)]),
    "bfloat16": (lambda: guard(Net(BF16)), [half]),
    "integers": (lambda: guard(Net()), [ids, ids > 0, ids.int(), [ids], {"a": (ids,)}]),
    "no tensors": (lambda: guard(Net()), ["text", 1, None, 2.5, True, [1, 2, 3], slice(2), torch.Size([2]), F32]),
    "lists and tuples": (lambda: guard(Net()), [[f(2), (f(2), f(3))], [((f(2), 1), [(f(2), ids)])]]),
    "dicts": (lambda: guard(Net()), [{"a": f(1), "b": [ids, None], "c": {"d": f(1)}}]),
    "long lists of numbers": (lambda: guard(Net()), [[0, *range(100), 0], [""] * 9]),
    "tensors between numbers": (lambda: guard(Net()), [[1.0, f(2), 2.0], [None, [0, f(3), 0], None]]),
    "a count beside half": (lambda: guard(Net(BF16)), [half, torch.tensor(4097.0), [torch.tensor(1.0)]]),
    "parameters of two dtypes": (lambda: guard(Net(F32, BF16)), [f(2), half, double]),
    "parameters on two devices": (lambda: guard(Net(device="meta")), [f(2), f(2).to("meta")]),
    "buffers": (lambda: guard(Net(F16, buffers=True)), [f(2, dtype=F16)]),
    "buffers of two dtypes": (lambda: guard(Net(F16, F32, buffers=True)), [f(2, dtype=F16), f(2)]),
    "no parameters": (lambda: guard(nn.ReLU()), [double]),
    "another dtype": (lambda: guard(Net(), dtype=BF16), [half, [half]]),
    "another device": (lambda: guard(Net(), device="meta"), [f(2).to("meta"), [f(2).to("meta")]]),
    "the same device": (lambda: guard(Net(), device="cpu"), [f(2)]),
    "a number on the CPU": (lambda: guard(Net(), device="meta"), [torch.tensor(1.0), ids]),
    "an argument to be skipped": (lambda: guard(nn.Bilinear(3, 3, 2), skip_args=("input2",)), [f(2, 3), f(2, 3)]),
    "an argument to be moved": (lambda: guard(Net(), move_args=("x",)), [ids]),
    "annotations": (lambda: guard(Annotated(BF16)), [half, ids[0]]),
    "an enforced method": (lambda: Enforced(BF16), [half, f(3), ids[:, 0]]),
    "a guarded enforced method": (lambda: guard(Enforced(BF16)), [half, f(3), ids[:, 0]]),
    "an enforced method and buffers": (lambda: Enforced(BF16, buffers=True), [half]),
    "subclasses of Tensor": (lambda: guard(Net()), [nn.Parameter(f(2)), f(2).as_subclass(Sub)]),
}


@pytest.mark.parametrize("region", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("name", MODULES)
def test_a_module_whose_contract_is_kept_does_not_ask_the_reference(name, region, asked):
    make, args = MODULES[name]
    model = make()
    with dtypeguard.mode("strict"), torch.autocast("cpu", dtype=BF16, enabled=region):
        for _ in range(3):  # the first call of an enforced method finds the anchor
            model.forward(*args)
    assert asked == []


AUTOCAST = [(own, given) for own in (F32, BF16) for given in (F16, BF16, F32)]


@pytest.mark.parametrize(("own", "given"), AUTOCAST)
def test_what_autocast_casts_itself_does_not_ask_the_reference(own, given, asked):
    x = f(2, 3, dtype=given)
    with torch.autocast("cpu", dtype=BF16), dtypeguard.mode("strict"):
        for model in (guard(Net(own)), Enforced(own), guard(Enforced(own)), guard(Annotated(own))):
            model.forward(x)
        guard(Net(F32))([x])
    assert asked == []


Rows = list[Float32[Tensor, "n"]] | dict[str, Float32[Tensor, "n"]]


@enforce
def bound(
    x: Float32[Tensor, "b"], y: Float32[Tensor, "k"] | Rows, z: Float32[Tensor, "n k"]
) -> Float32[Tensor, "b"] | list[Float32[Tensor, "k"]] | dict[str, Float32[Tensor, "k"]]:
    return x if x[0] == 1 else [x]


BOUND = [(f(5), f(3), f(2, 3)), (f(5), [f(2)], f(2, 3)), (f(5), [f(2), f(2)], f(2, 3)), (2 * f(3), f(3), f(2, 3))]
UNBOUND = [
    (f(5), f(3), f(2, 4)), (f(5), [f(2)], f(3, 3)), (f(5), [f(2), f(3)], f(2, 3)), (2 * f(5), f(3), f(2, 3)),
]  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"row": f(3)},
        {"row": f(4), "name": "a"},
        {"row": f(3), "rest": f(3, 3), "name": "a"},
        {"row": 1, "name": "a"},
    ],
)
def test_a_dict_that_is_not_as_typed_is_refused_and_stays_as_it_is(wrong, asked):
    given = collections.defaultdict(lambda: f(3), wrong)
    with dtypeguard.mode("strict"), pytest.raises(DtypeGuardError):
        typed_dicts(f(2, 3), given, given)
    assert given == wrong
    assert len(asked) == 1


def test_an_argument_that_only_the_reference_checks_binds_axes_for_the_others(asked):
    with dtypeguard.mode("strict"):
        for arguments in BOUND:
            bound(*arguments)
        assert asked == []
        for arguments in UNBOUND:
            with pytest.raises(dtypeguard.ShapeError):
                bound(*arguments)
        assert len(asked) == len(UNBOUND)


def test_of_a_module_the_reference_checks_one_such_argument_alone_and_several_together(asked):
    class Net(nn.Linear):
        @enforce
        def forward(self, x: Float[Tensor, "b k"], y: Float[Tensor, "k"] | Rows):
            return super().forward(x)

        @enforce
        def both(self, x: Float[Tensor, "k"] | Rows, y: Float[Tensor, "k"] | Rows):
            return x

    net = Net(3, 3)
    for y in (f(3), [f(5)], {"a": f(5)}):
        net(f(2, 3), y)
    assert asked == []
    net.both(f(3), f(3))
    assert len(asked) == 1
    for call in (lambda: net(f(2, 3), f(4)), lambda: net.both(f(3), f(4))):
        with pytest.raises(dtypeguard.ShapeError):
            call()


@enforce
def listed(x: list[Float32[Tensor, "n"]] | int): ...
@enforce
def ranked(
    x: Float32[Tensor, "b c"] | Int[Tensor, "b c"] | Float32[Tensor, "c"] | int | list[Float32[Tensor, "c"]],
): ...


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (listed, f(3)),
        (listed, [f(3), f(4)]),
        (listed, None),
        (ranked, f(3, dtype=F64)),
        (ranked, f(3, dtype=torch.int64)),
        (ranked, f(2, 3, dtype=torch.bool)),
        (ranked, f(2, 3, 4)),
        (ranked, f()),
        (ranked, "text"),
        (ranked, [f(2, 3)]),
        (ranked, (f(3),)),
    ],
)
def test_what_no_option_of_a_union_takes_is_refused(function, wrong, asked):
    with dtypeguard.mode("strict"), pytest.raises(DtypeGuardError):
        function(wrong)
    assert len(asked) == 1


# ---------------------------------------------------------------- mended before


@enforce
def scaled(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"] | None = None, z: Float32[Tensor, "n"] | None = None):
    return x is y


@enforce
def shifted(x: Float32[Tensor, ""]):
    return x


@enforce
def joined(x: list[Float32[Tensor, "n"]]):
    return x


def wide():
    return f(3, dtype=F64)


def narrow():
    return f(3, dtype=F16)


def matrix():
    return f(2, 3, dtype=F64)


def thrice(function, *makes):
    """Call from one line, with new arguments each time."""
    for _ in range(3):
        function(*(make() for make in makes))


AGAIN = {  # a function, and what makes its arguments
    "one argument": (lambda: scaled, [wide]),
    "the second": (lambda: scaled, [lambda: f(3), wide]),
    "two": (lambda: scaled, [wide, narrow]),
    "a column": (lambda: scaled, [lambda: f(3, 2, dtype=F64)[:, 0]]),
    "with a gradient": (lambda: scaled, [lambda: wide().requires_grad_()]),
    "a guard": (lambda: guard(nn.Linear(3, 3)), [wide]),
    "a guard with a dtype": (lambda: guard(nn.Identity(), dtype=F16), [wide]),
    "an enforced method": (lambda: Enforced(BF16).forward, [matrix]),
    "a guarded method": (lambda: guard(Enforced(F32)).forward, [matrix, wide]),
}


@pytest.mark.parametrize("region", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("name", AGAIN)
def test_a_repair_is_made_again_without_the_reference(name, region, asked):
    make, arguments = AGAIN[name]
    function = make()
    with torch.autocast("cpu", dtype=BF16, enabled=region):
        thrice(function, *arguments)
    assert len(asked) == 1
    assert {record.count for record in dtypeguard.casts()} == {3}


ANEW = {
    "an expanded tensor": (lambda: scaled, [lambda: f(1, dtype=F64).expand(3)]),
    "a number": (lambda: shifted, [lambda: torch.tensor(1.0, dtype=F64)]),
    "more than two": (lambda: scaled, [wide, narrow, wide]),
    "in a list": (lambda: joined, [lambda: [wide()]]),
    "every one is verified": (lambda: enforce(verify="always")(scaled.__wrapped__), [wide]),
    "a function with *args": (lambda: guard(Net()), [wide]),
    "a subclass of Tensor": (lambda: scaled, [lambda: wide().as_subclass(Sub)]),
    "a sparse tensor": (lambda: scaled, [lambda: wide().to_sparse()]),
}


@pytest.mark.parametrize("name", ANEW)
def test_what_is_not_simple_asks_the_reference_each_time(name, asked):
    make, arguments = ANEW[name]
    thrice(make(), *arguments)
    assert len(asked) == 3


def test_one_tensor_given_twice_leaves_the_plan_for_two_alone(asked):
    x, y, times = wide(), wide(), []
    for second in (x, y, x, y):
        scaled(x, second)
        times.append(len(asked))
    assert times == [1, 2, 3, 3]


def test_one_plan_knows_many_lines_dtypes_and_modules_until_the_records_are_reset(asked):
    for _ in range(3):
        scaled(wide())
        scaled(wide(), wide())
        scaled(wide())
    assert len(asked) == 3
    for make in (narrow, wide, narrow):
        scaled(make())
    assert len(asked) == 5
    models = [guard(nn.Linear(3, 3)), guard(nn.Linear(3, 3))]
    for model in models * 3:
        model.forward(wide())
    assert len(asked) == 7
    for _ in range(2):
        dtypeguard.reset_casts()
        thrice(scaled, wide)
    assert len(asked) == 9
    with dtypeguard.mode("strict"), pytest.raises(DtypeGuardError):
        thrice(scaled, wide)
    assert len(asked) == 10


class SpecialParameter(nn.Parameter):
    pass


def follows():
    class Follows(nn.Module):  # anew, since it remembers where it found its anchor
        @enforce(mode="strict")
        def forward(self, x: Float[Tensor, "n"]):
            return x

    return Follows()


def fresh():
    return type("Fresh", (nn.Identity,), {})()  # a class that no guard met before


@pytest.mark.parametrize(("make", "wrap"), [(fresh, guard), (follows, nn.Module.eval)], ids=["guard", "enforce"])
@pytest.mark.parametrize(("kind", "calls"), [(nn.Parameter, 0), (SpecialParameter, 2)])
def test_a_plain_parameter_is_read_without_a_call(make, wrap, kind, calls, monkeypatch):
    looks, asks = [], _build.facts_for_wrapper
    monkeypatch.setattr(_build, "facts_for_wrapper", lambda *given: looks.append(given[1]) or asks(*given))
    model = make()
    model.weight = kind(f(2))
    model = wrap(model)
    for _ in range(3):
        model.forward(f(2))
    assert len(looks) == calls + (calls and wrap is guard)  # the first call of an enforced method looks itself


def test_an_enforced_method_looks_for_its_anchor_once(monkeypatch):
    looks, find = [], _build.find
    monkeypatch.setattr(_build, "find", lambda module: looks.append(module) or find(module))
    make = type(follows())
    for dtype in (F32, BF16):
        model = make()
        model.weight = nn.Parameter(f(2, dtype=dtype))
        for _ in range(3):
            model.forward(f(2, dtype=dtype))
    assert len(looks) == 1


def test_a_plan_is_for_one_region_of_autocast(asked):
    model, dtypes = guard(nn.Linear(3, 3)), []
    for region in (None, BF16, F16) * 3:
        with torch.autocast("cpu", dtype=region or BF16, enabled=region is not None):
            dtypes.append(model.forward(wide()).dtype)
    assert dtypes == [F32, BF16, F16] * 3
    assert len(asked) == 3


def test_a_plan_ends_where_the_parameters_are_of_another_dtype(asked):
    model, dtypes = guard(nn.Sequential(nn.Linear(3, 3), nn.Identity(), nn.Linear(3, 3))), []
    for change in (nn.Module.float, nn.Module.float, nn.Module.half):
        change(model)
        dtypes.append(model.forward(wide()).dtype)
    assert dtypes == [F32, F32, F16]
    assert len(asked) == 2


def test_a_plan_that_mends_a_part_is_forgotten(asked):
    for y in (None, None, wide(), wide(), wide()):
        scaled(wide(), y)
    assert len(asked) == 2


def test_a_repair_is_made_again_where_the_body_calls_itself(asked):
    @enforce
    def halved(x: Float32[Tensor, "n"], depth: int):
        return halved(x.double() / 2, depth - 1) if depth else x

    assert [halved(wide() + 8, 2).dtype for _ in range(3)] == [F32] * 3
    assert [record.count for record in dtypeguard.casts()] == [3, 6]
    assert len(asked) == 2


def test_a_repair_is_made_again_of_two_decorators_on_one_function(asked):
    @enforce
    @enforce
    def twice(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"] | None = None):
        return x.dtype

    assert [twice(wide(), y) for y in (None, None, wide(), None, None)] == [F32] * 5
    assert [record.count for record in dtypeguard.casts()] == [5, 1]


def test_a_result_that_code_cannot_express_is_held_to_the_parameters_dtype():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        @enforce(mode="strict")
        def forward(self, x: Float[Tensor, "n"], wide: bool) -> Float[Tensor, "n"] | Float[Tensor, "other"]:
            return x.double() if wide else x

    net = Net()
    assert net(torch.ones(3), False).dtype is torch.float32
    with pytest.raises(dtypeguard.DtypeError, match="result is float64, the module's parameters are float32"):
        net(torch.ones(3), True)
