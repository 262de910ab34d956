"""Whole operations under autocast, and custom autograd functions, against what PyTorch does without a contract.

The table and its law stand in `autocast_rows`; `test_autocast` has the rule alone, without operations.
"""

import itertools
import random

import pytest
import torch
from autocast_rows import (
    BF16,
    BY_FACT,
    F16,
    F32,
    F64,
    FLOATS,
    PLACES,
    REGIONS,
    ROWS,
    Cell,
    accepts,
    cells,
    hold,
    region,
    step,
)
from jaxtyping import Float, Float32
from support import same
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd

import dtypeguard
from dtypeguard import CastWarning, ContractWarning, DtypeError, enforce, guard

HALVES = (BF16, F16)
FACTS = [(row, fact) for fact, rows in BY_FACT.items() for row in rows if len(fact) == 4]
# One or two of each kind of operation, for those products that are not run whole every time.
SOME = """Linear; Conv2d, BatchNorm2d, ReLU; sdpa with a float mask; Embedding and Linear; tensordot; own region;
GRU with a state; residual block; softmax; dropout; RMSNorm; LayerNorm; BatchNorm1d; mul; mse_loss; cross_entropy;
cdist; cat; cat of two inputs; index_copy; index_put; Bilinear""".replace("\n", " ").split("; ")
FEW = ["Linear", "residual block", "LayerNorm", "softmax", "cat", "mse_loss"]
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")  # torch's, once
each_row = pytest.mark.parametrize("row", ROWS)
each_region = pytest.mark.parametrize("within", REGIONS, ids=["none", "bfloat16", "float16"])


def unless(rows, *values):
    """Marks what is not among the chosen rows slow."""
    return pytest.param(*values, marks=() if values[0] in rows else pytest.mark.slow)


# ---------------------------------------------------------------- the table


@each_row
def test_every_row_computes_in_float32(row):
    cell = Cell(row, (F32,) * ROWS[row].floating, None)
    outcome = step(cell, cell.model())
    assert outcome.error is None
    assert all(result.isfinite().all() for result in outcome.results)
    gradients = [tensor for name, tensor in outcome.tensors.items() if name.startswith("gradient")]
    assert any(gradient is not None and gradient.any() for gradient in gradients) is ROWS[row].grad


def test_the_chosen_rows_are_rows():
    assert {*SOME, *FEW} <= set(ROWS)


@pytest.mark.thin(6)
@each_region
@each_row
def test_a_contract_around_a_float32_module(row, within):
    for cell in cells(row, within):
        hold(cell)


@pytest.mark.thin(3)
@each_region
@pytest.mark.parametrize("row", [unless(SOME, row) for row in ROWS if ROWS[row].floating == 2])
def test_a_contract_around_two_inputs_of_any_two_dtypes(row, within):
    for cell in cells(row, within, pairs=True):
        hold(cell)


@pytest.mark.thin(4)
@each_region
@pytest.mark.parametrize(
    ("row", "params"),
    [unless(SOME if params is BF16 else [], row, params) for params in (BF16, F16, F64) for row in ROWS],
)
def test_a_contract_around_a_module_of_another_dtype(row, params, within):
    for cell in cells(row, within, params=params):
        hold(cell)


@pytest.mark.thin(3)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("row", [unless(FEW, row) for row in ROWS])
def test_a_contract_in_regions_that_nest_end_and_come_about_otherwise(row, place):
    for cell in cells(row, PLACES[place][0], place=place):
        hold(cell)


# ---------------------------------------------------------------- what the table rests on


@pytest.mark.parametrize(("row", "fact"), FACTS)
def test_autocast_makes_of_an_input_what_the_table_says(row, fact):
    """A new PyTorch that moves an operation from one of autocast's lists to another is noticed here."""
    for half, other in (HALVES, HALVES[::-1]):
        letters = {half: "a", other: "o", F32: "f", F64: "d", None: "!"}
        found = ""
        for dtype in (half, other, F32, F64):
            cell = Cell(row, (dtype,) * ROWS[row].floating, half)
            results = step(cell, cell.model()).results
            (kind,) = {result.dtype for result in results} or {None}
            found += letters[kind]
        assert found == fact


# ---------------------------------------------------------------- ways through a model


def test_a_half_result_that_leaves_a_region_inside_the_forward_is_named():
    class Net(nn.Linear):
        @enforce
        def forward(self, x: Float[Tensor, "b i"]) -> Float[Tensor, "b o"]:
            with torch.autocast("cpu", BF16):
                return super().forward(x)

    model, x = Net(3, 2), torch.randn(4, 3)
    with dtypeguard.mode("strict"), pytest.raises(DtypeError) as caught:
        model(x)
    assert (caught.value.argument, caught.value.actual) == ("result", BF16)
    with region(BF16), dtypeguard.mode("strict"):
        assert model(x).dtype is BF16


class Both(nn.Linear):
    def forward(self, x, y):
        return x, y


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
@pytest.mark.parametrize("number", range(4))
def test_one_line_that_is_called_in_every_place_in_turn(number):
    """What is known of a repair must not be used where it is none."""
    plainly = {str(dtype): (dtype, lambda kind, dtype=dtype: region(dtype, kind)) for dtype in REGIONS}
    places = PLACES | plainly
    turns = list(itertools.product(places, FLOATS, FLOATS))
    random.Random(number).shuffle(turns)
    bare, model = Both(3, 2), guard(Both(3, 2), mode="lenient")
    wrong = []
    for place, *given in turns:
        within, enter = places[place]
        expected = [dtype if F32 in given or accepts(bare, dtype, within) else F32 for dtype in given]
        with enter("cpu"):
            got = [tensor.dtype for tensor in model(*(torch.ones(2, 3, dtype=dtype) for dtype in given))]
        if got != expected:
            wrong.append((place, given, got))
    assert wrong == []


@pytest.mark.filterwarnings("ignore::dtypeguard.CastWarning")
def test_a_repair_counts_also_where_the_operation_then_fails():
    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x) @ x

    model = guard(Net(3, 2))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="shapes"):
            model(torch.ones(1, 3, dtype=F64))
    assert [record.count for record in dtypeguard.casts()] == [3]


# ---------------------------------------------------------------- custom autograd functions


def product(style="forward with ctx", cast=None, contract=None):
    """A matrix product with a backward of its own; the contract of its forward above or below `custom_fwd`."""

    def forward(ctx, x: Float32[Tensor, "b i"], w: Float32[Tensor, "i o"]) -> Float[Tensor, "b o"]:
        ctx.save_for_backward(x, w)
        return x @ w

    def compute(x: Float32[Tensor, "b i"], w: Float32[Tensor, "i o"]) -> Float[Tensor, "b o"]:
        return x @ w

    def setup_context(ctx, inputs: tuple[Float32[Tensor, "b i"], Float32[Tensor, "i o"]], output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.mT, x.mT @ grad

    class Product(torch.autograd.Function):
        pass

    def made(function):
        """`custom_fwd` around the function that gets the ctx, for it writes there; the contract on its one side."""
        function = enforce(function) if contract == "below" else function
        function = custom_fwd(function, device_type="cpu", cast_inputs=cast)
        return enforce(function) if contract == "above" else function

    if style == "setup_context":  # autograd hands it what the caller gave: it needs a contract of its own
        Product.forward = staticmethod(compute if contract is None else enforce(compute))
        Product.setup_context = staticmethod(made(setup_context))
    else:
        Product.forward = staticmethod(made(forward))
    Product.backward = staticmethod(custom_bwd(backward, device_type="cpu"))
    return Product.apply


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.arange(6.0).sin().reshape(3, 2)), function

    def forward(self, x):
        return self.function(x, self.weight)


class EnforcedNet(Net):
    @enforce
    def forward(self, x: Float[Tensor, "b i"]) -> Float[Tensor, "b o"]:
        return super().forward(x)


def around(function):
    @enforce
    def project(x: Float32[Tensor, "b i"], w: Float32[Tensor, "i o"]) -> Float[Tensor, "b o"]:
        return function(x, w)

    return project


ENTRANCES = {
    "guard": lambda **kind: guard(Net(product(**kind))),
    "guard, all": lambda **kind: guard(Net(product(**kind)), depth="all"),
    "method": lambda **kind: EnforcedNet(product(**kind)),
    "function": lambda **kind: Net(around(product(**kind))),
    "above": lambda **kind: Net(product(contract="above", **kind)),
    "below": lambda **kind: Net(product(contract="below", **kind)),
}
FORMS = [("forward with ctx", None), ("forward with ctx", F32), ("forward with ctx", BF16), ("setup_context", None)]


def trained(model, dtype, within, by_hand=False):
    """The result, and the gradients of the input and of the weight; or what was raised."""
    x = torch.linspace(-1, 1, 12, dtype=F64).reshape(4, 3).to(dtype).requires_grad_()
    model.zero_grad()
    try:
        with region(within):
            y = model(x.float() if by_hand else x)
        (y.double().sin() * 3).sum().backward()
    except RuntimeError as error:
        return str(error)
    return y, x.grad, model.weight.grad


@each_region
@pytest.mark.parametrize(
    ("entrance", "style", "cast"),
    [(entrance, *form) for entrance in ENTRANCES for form in FORMS if (entrance, form[1]) != ("below", BF16)],
)
def test_a_contract_around_a_custom_function(entrance, style, cast, within):
    kind, plain = {"style": style, "cast": cast}, Net(product(style, cast))
    takes = {F32}
    if within is not None and (entrance in ("guard", "guard, all", "method") or (entrance, cast) == ("below", F32)):
        takes = {F16, BF16, F32}
    twice = style == "setup_context" and entrance in ("above", "below")
    arguments = ["x", "inputs[0]"] if twice else ["x"]
    for dtype in FLOATS:
        model = ENTRANCES[entrance](**kind)
        expected = trained(plain, dtype, within)
        if dtype in takes:
            for mode in ("strict", "lenient", "warn", "off"):
                with dtypeguard.mode(mode):
                    assert same(trained(model, dtype, within), expected)
            assert dtypeguard.casts() == []
            continue
        with dtypeguard.mode("strict"), pytest.raises(DtypeError) as caught:
            trained(model, dtype, within)
        assert (caught.value.argument, caught.value.actual, caught.value.expected) == ("x", dtype, F32)
        dtypeguard.reset_casts()
        with pytest.warns(CastWarning) as said:
            got = [trained(model, dtype, within) for _ in range(2)]
        assert len(said) == len(arguments)
        assert all(same(one, trained(plain, dtype, within, by_hand=True)) for one in got)
        assert [(record.argument, record.count) for record in dtypeguard.casts()] == [(name, 2) for name in arguments]
        dtypeguard.reset_casts()
        with dtypeguard.mode("off"):
            assert same(trained(model, dtype, within), expected)
        with dtypeguard.mode("warn"), pytest.warns(ContractWarning) as said:
            assert same(trained(model, dtype, within), expected)
        assert "argument `x` is" in str(said[0].message)
        assert len(said) == (1 if isinstance(expected, str) else len(arguments))
        assert dtypeguard.casts() == []


@pytest.mark.parametrize("entrance", ["above", "below"])
def test_follow_makes_a_custom_function_as_tolerant_as_a_module(entrance):
    def forward(ctx, x: Float32[Tensor, "b i"], w: Float32[Tensor, "i o"]):
        ctx.save_for_backward(x, w)
        return x @ w

    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.mT, x.mT @ grad

    class Product(torch.autograd.Function):
        pass

    contract, enters = enforce(autocast="follow", mode="strict"), custom_fwd(device_type="cpu")
    made = contract(enters(forward)) if entrance == "above" else enters(contract(forward))
    Product.forward, Product.backward = staticmethod(made), staticmethod(custom_bwd(backward, device_type="cpu"))
    for half, dtype in itertools.product(HALVES, (F16, BF16, F32)):
        got, expected = trained(Net(Product.apply), dtype, half), trained(Net(product()), dtype, half)
        assert same(got, expected)
        assert got[0].dtype is half
    for dtype, within in ((F64, BF16), (BF16, None)):
        with pytest.raises(DtypeError, match=f"`x` is {str(dtype).removeprefix('torch.')}"):
            trained(Net(Product.apply), dtype, within)


# A function without `custom_fwd`, https://github.com/pytorch/pytorch/issues/47906: backward runs outside the region,
# where a half gradient meets float32 tensors that were saved.


class Proj(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.mT, x.mT @ grad


@pytest.mark.parametrize("half", HALVES)
def test_autocast_disable_around_such_a_function_mends_it_too(half):
    @enforce(autocast="disable", mode="strict")
    def project(x: Float32[Tensor, "b i"], w: Float32[Tensor, "i o"]) -> Float32[Tensor, "b o"]:
        return Proj.apply(x, w)

    assert same(trained(Net(project), F32, half), trained(Net(Proj.apply), F32, None))
    assert same(trained(guard(Net(Proj.apply), autocast="disable"), F32, half), trained(Net(Proj.apply), F32, None))
    assert dtypeguard.casts() == []


@pytest.mark.parametrize("half", HALVES)
def test_a_contract_on_backward_names_the_half_gradient(half):
    class Checked(Proj):
        @staticmethod
        @enforce
        def backward(ctx, grad: Float32[Tensor, "b o"]):
            return Proj.backward(ctx, grad)

    class ByHand(Proj):
        @staticmethod
        def backward(ctx, grad):
            return Proj.backward(ctx, grad.float())

    with dtypeguard.mode("strict"):
        with pytest.raises(DtypeError) as caught:
            trained(Net(Checked.apply), F32, half)
        assert same(trained(Net(Checked.apply), F32, None), trained(Net(Proj.apply), F32, None))
    assert (caught.value.argument, caught.value.actual, caught.value.expected) == ("grad", half, F32)
    with pytest.warns(CastWarning, match="`grad` was cast") as said:
        got = trained(Net(Checked.apply), F32, half)
    assert len(said) == 1
    assert same(got, trained(Net(ByHand.apply), F32, half))
