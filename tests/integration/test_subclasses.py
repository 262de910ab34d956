"""Tensors that are more, or less, than a plain dense Tensor: as inputs and as weights."""

import copy
import dataclasses
from collections import Counter
from typing import ClassVar, NamedTuple

import pytest
import torch
from jaxtyping import Float, Float32
from support import BF16, F16, F32, F64
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.testing._internal.logging_tensor import LoggingTensor
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import dtypeguard
from dtypeguard import (
    CastError,
    CastWarning,
    DeviceError,
    DtypeError,
    DtypeGuardError,
    DtypeGuardWarning,
    HintError,
    InplaceOnCastWarning,
    enforce,
    guard,
    is_guarded,
)

pytestmark = [
    pytest.mark.filterwarnings(text)
    for text in (  # torch's own, about what it does not promise to keep
        "ignore:.*nested tensors is in prototype stage",
        "ignore:.*MaskedTensors is in prototype stage",
        "ignore:Sparse invariant checks are implicitly disabled",
        "ignore:Sparse .* tensor support is in beta state",
        "ignore:.*functions that produce tensors with dtype torch.quint8",
        "ignore:torch.ao.quantization is deprecated:DeprecationWarning",
        "ignore:Attempted to insert a get_attr Node with no underlying reference",
        "ignore:.torch.jit.* is deprecated:DeprecationWarning",
        "ignore:(Config )?Deprecation: ",  # torchao < 0.18
    )
]


# ---------------------------------------------------------------- odd tensors as inputs


class Tagged(Tensor):
    """A subclass as most are: all it has is a name."""


def halves(dtype):
    return torch.arange(9, dtype=dtype).reshape(3, 3) / 2


def nested(layout):
    return lambda dtype: torch.nested.nested_tensor([halves(dtype)[:1], halves(dtype)], layout=layout)


def hybrid(dtype):
    return torch.stack([halves(dtype)] * 2, -1).to_sparse(2)


# name: makes a tensor with three columns from a dtype
ODD = {
    "parameter": lambda dtype: nn.Parameter(halves(dtype)),
    "buffer": lambda dtype: nn.Buffer(halves(dtype)),
    "requires grad": lambda dtype: halves(dtype).requires_grad_(),
    "not a leaf": lambda dtype: halves(dtype).requires_grad_() * 2,
    "negative view": lambda dtype: torch._neg_view(halves(dtype)),
    "imaginary part of a conjugate": lambda dtype: torch.complex(halves(dtype), halves(dtype)).conj().imag,
    "transposed": lambda dtype: halves(dtype).T,
    "expanded": lambda dtype: halves(dtype)[:1].expand(4, 3),
    "no rows": lambda dtype: halves(dtype)[:0],
    "one row": lambda dtype: halves(dtype)[:1],
    "scalar": lambda dtype: torch.tensor(2.5, dtype=dtype),
    "all zeros without storage": lambda dtype: torch._efficientzerotensor((3, 3), dtype=dtype),
    "made in inference mode": torch.inference_mode()(halves),
    "nested": nested(torch.strided),
    "nested, jagged": nested(torch.jagged),
    "sparse coo": lambda dtype: halves(dtype).to_sparse(),
    "sparse coo, not coalesced": lambda dtype: torch.sparse_coo_tensor([[0, 0], [1, 1]], halves(dtype)[0, 1:], (3, 3)),
    "sparse coo, hybrid": hybrid,
    "sparse csr": lambda dtype: halves(dtype).to_sparse_csr(),
    "sparse csc": lambda dtype: halves(dtype).to_sparse_csc(),
    "sparse bsr": lambda dtype: halves(dtype).to_sparse_bsr((3, 3)),
    "sparse bsc": lambda dtype: halves(dtype).to_sparse_bsc((3, 3)),
    "mkldnn": lambda dtype: halves(dtype).to_mkldnn(),
    "masked": lambda dtype: torch.masked.masked_tensor(halves(dtype), torch.eye(3).bool()),
    "subclass": lambda dtype: halves(dtype).as_subclass(Tagged),
    "subclass, a parameter": lambda dtype: nn.Parameter(halves(dtype).as_subclass(Tagged)),
    "two tensors in one": lambda dtype: TwoTensor(halves(dtype), halves(dtype) + 1),
    "logged": lambda dtype: LoggingTensor(halves(dtype)),
}
NOT_TWO_AXES = ("scalar", "nested", "nested, jagged", "sparse coo, hybrid")
NO_LINEAR = ("scalar", "sparse coo, hybrid", "masked", "sparse bsc")  # torch itself has no kernel


def other(name):
    return BF16 if name == "mkldnn" else F64  # oneDNN has no float64


def ours(said):
    return [warning.category for warning in said if issubclass(warning.category, DtypeGuardWarning)]


def text(error):
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0), requires_grad=False)

    def forward(self, x):
        return x * self.weight


class EnforcedScale(Scale):
    @enforce
    def forward(self, x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return x * self.weight


class ScaleOfAxes(Scale):
    @enforce
    def forward(self, x: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
        return x * self.weight


class ScaleOfMany(Scale):
    @enforce
    def forward(self, *x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return x[0] * self.weight


class ScaleOfList(Scale):
    def forward(self, batch):
        return batch["x"][0] * self.weight


@enforce
def double(x: Float32[Tensor, "..."]) -> Float32[Tensor, "..."]:
    return x * 2


@enforce
def double_of_axes(x: Float32[Tensor, "rows columns"]) -> Float32[Tensor, "rows columns"]:
    return x * 2


def linear():
    torch.manual_seed(0)
    return nn.Linear(3, 2).requires_grad_(False)


def whole(x):
    return (x,)


# name: the bare callable, the checked one, how the tensor is given, the argument's name
WAYS = {
    "guard": (Scale, lambda: guard(Scale()), whole, "x"),
    "guard, every owner": (Scale, lambda: guard(nn.Sequential(Scale()), depth="all"), whole, "input"),
    "guard, inside containers": (ScaleOfList, lambda: guard(ScaleOfList()), lambda x: ({"x": [x]},), "batch['x'][0]"),
    "guard, linear": (linear, lambda: guard(linear()), whole, "input"),
    "enforce": (Scale, EnforcedScale, whole, "x"),
    "enforce, axes": (Scale, ScaleOfAxes, whole, "x"),
    "enforce, several": (Scale, ScaleOfMany, whole, "x[0]"),
    "enforce, function": (lambda: double, lambda: double, whole, "x"),
    "enforce, function, axes": (lambda: double_of_axes, lambda: double_of_axes, whole, "x"),
}
CASES = [
    pytest.param(way, name, id=f"{way}-{name}")
    for way in WAYS
    for name in ODD
    if not ("axes" in way and name in NOT_TWO_AXES) and not ("linear" in way and name in NO_LINEAR)
]


def parts(value):
    """The plain dense tensors that a tensor consists of."""
    if isinstance(value, TwoTensor):
        return [value.a, value.b]
    if isinstance(value, LoggingTensor):
        return [value.elem]
    if isinstance(value, torch.masked.MaskedTensor):
        return [value.get_data(), value.get_mask()]
    if value.is_nested:
        return [*value.unbind()]
    if value.layout is torch.sparse_coo:
        value = value.coalesce()
        return [value.indices(), value.values()]
    return [value.to_dense() if value.layout is not torch.strided else value]


def alike(a, b):
    kinds = [(type(t), t.dtype, t.layout, t.device, t.requires_grad) for t in (a, b)]
    return kinds[0] == kinds[1] and all(torch.equal(x, y) for x, y in zip(parts(a), parts(b), strict=True))


def bare(way, give):
    """The callable without any check; a body that is enforced runs with checks off."""
    with dtypeguard.mode("off"):
        return WAYS[way][0]()(*give)


@pytest.mark.thin(6)
@pytest.mark.parametrize(("way", "name"), CASES)
def test_an_odd_tensor_passes_untouched_or_is_named_or_repaired_as_by_hand(way, name):
    _, make, give, argument = WAYS[way]
    right, wrong, model = ODD[name](F32), ODD[name](other(name)), make()
    with dtypeguard.mode("strict"):
        assert alike(model(*give(right)), bare(way, give(right)))
        assert dtypeguard.casts() == []
        with pytest.raises(DtypeError) as caught:
            model(*give(wrong))
    assert (caught.value.argument, caught.value.actual, caught.value.expected) == (argument, other(name), F32)
    assert "\n  fix " in str(caught.value)
    if name == "mkldnn":  # which torch cannot cast
        return
    expected = bare(way, give(wrong.to(F32)))
    with pytest.warns(CastWarning, match=r"was cast from \w+ to float32") as said:
        results = [model(*give(wrong)) for _ in range(2)]
    assert ours(said) == [CastWarning]
    assert all(alike(result, expected) for result in results)
    (record,) = dtypeguard.casts()
    assert (record.argument, record.from_dtype, record.to_dtype, record.count) == (argument, other(name), F32, 2)
    assert record.bytes == 0 if name == "no rows" else record.bytes > 0


@enforce
def widens(x: Float32[Tensor, "..."]) -> Float32[Tensor, "..."]:
    return x.double()


@pytest.mark.parametrize("name", [name for name in ODD if name != "mkldnn"])
def test_an_odd_result_of_a_wrong_dtype_is_named_and_repaired(name):
    x = ODD[name](F32)
    with dtypeguard.mode("strict"), pytest.raises(DtypeError) as caught:
        widens(x)
    assert (caught.value.argument, caught.value.actual, caught.value.expected) == ("result", F64, F32)
    with pytest.warns(CastWarning, match="the result was cast"):
        assert alike(widens(x), x.double().to(F32))


@pytest.mark.parametrize("name", ["requires grad", "nested, jagged", "subclass", "two tensors in one"])
def test_gradients_come_home_through_a_repair_of_an_odd_tensor(name):
    grads = []
    for by_hand in (True, False):
        x, model = ODD[name](F64).detach().requires_grad_(), guard(Scale())
        if by_hand:
            loss = model(x.to(F32)).sum()
        else:
            with pytest.warns(CastWarning):
                loss = model(x).sum()
        loss.backward()
        grads.append(x.grad)
    assert grads[1].dtype is F64
    assert alike(*grads)


@enforce
def writes(x: Float32[Tensor, "..."]):
    x.mul_(2)


@pytest.mark.parametrize(
    "name", ["one row", "nested, jagged", "sparse coo", "sparse csr", "subclass", "two tensors in one", "logged"]
)
def test_writing_to_a_cast_copy_of_an_odd_tensor_is_said(name):
    x = ODD[name](F64)
    with pytest.warns(DtypeGuardWarning) as said:
        writes(x)
    assert ours(said) == [CastWarning, InplaceOnCastWarning]
    assert alike(x, ODD[name](F64))


def test_axes_of_a_jagged_tensor_are_checked(strict):
    x = ODD["nested, jagged"](F32)

    @enforce
    def three(x: Float32[Tensor, "batch #time 3"]):
        return x * 2

    @enforce
    def two(x: Float32[Tensor, "batch columns"]):
        return x * 2

    assert alike(three(x), x * 2)
    with pytest.raises(dtypeguard.ShapeError) as caught:
        two(x)
    assert caught.value.argument == "x"


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("mkldnn", BF16, F32),
        ("masked", F32, BF16),  # it knows float32 and float64 alone
    ],
)
def test_where_torch_cannot_cast_the_error_names_the_argument(name, source, target):
    model, x = guard(Scale().to(target), mode="lenient"), ODD[name](source)
    with pytest.raises((CastError, NotImplementedError, TypeError)) as caught:
        model(x)
    assert "`x`" in text(caught.value)
    assert dtypeguard.casts() == []


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 2)

    def forward(self, x: PackedSequence, h=None):
        return self.rnn(x, h)[0].data


def test_a_packed_sequence_is_named_and_repaired_in_its_data():
    torch.manual_seed(0)
    model, lengths = Packed(), torch.tensor([3, 2])
    dense, h = torch.randn(3, 2, 3), torch.randn(1, 2, 2)
    packed, wide = (pack_padded_sequence(x, lengths) for x in (dense, dense.double()))
    expected = model(packed, h)
    guard(model, depth="all")
    with dtypeguard.mode("strict"):
        assert torch.equal(model(packed, h), expected)
        with pytest.raises(DtypeError) as caught:
            model(wide, h)
    assert caught.value.argument == "x.data"
    with pytest.warns(CastWarning) as said:
        assert torch.equal(model(wide, h), expected)
    assert ours(said) == [CastWarning]
    assert [cast.argument for cast in dtypeguard.casts()] == ["x.data"]


# ---------------------------------------------------------------- quantized and fake tensors


class Dequantizes(Scale):
    def forward(self, x):
        return x.dequantize() * self.weight


class EnforcedDequantizes(Scale):
    @enforce
    def forward(self, x: Float[Tensor, "..."]):
        return x.dequantize() * self.weight


def quantized(dtype=torch.quint8):
    return torch.quantize_per_tensor(halves(F32), 0.5, 0, dtype)


@pytest.mark.parametrize("dtype", [torch.quint8, torch.qint32])
def test_quantized_tensors_are_the_bodys_business_unless_a_float_is_annotated(dtype):
    model, x = Dequantizes(), quantized(dtype)
    with dtypeguard.mode("strict"):
        assert torch.equal(guard(copy.deepcopy(model), depth="all")(x), model(x))
        with pytest.raises(RuntimeError, match="same dtype") as expected:
            linear()(x)
        with pytest.raises(RuntimeError, match="same dtype") as caught:
            guard(linear())(x)
    assert str(caught.value) == str(expected.value)
    for mode, error in (("strict", DtypeError), ("lenient", CastError)):
        with dtypeguard.mode(mode), pytest.raises(error) as caught:
            EnforcedDequantizes()(x)
        assert (caught.value.argument, caught.value.actual, caught.value.expected) == ("x", dtype, F32)
        assert "x.dequantize()" in str(caught.value)

    @enforce(casting="unsafe")
    def taken(x: Float[Tensor, "..."], y: Float32[Tensor, "..."]):
        return y

    with pytest.warns(CastWarning):
        assert torch.equal(taken(halves(F32), x), x.dequantize())


@pytest.fixture
def fake():
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        yield mode


def real(make):
    with unset_fake_temporarily():
        return make()


@pytest.mark.parametrize("weights", [lambda make: make(), real], ids=["fake weights", "real weights"])
@pytest.mark.parametrize("depth", ["auto", "all"])
def test_fake_tensors(weights, depth, fake):
    model = guard(weights(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))), depth=depth)
    with dtypeguard.mode("strict"):
        out = model(torch.ones(2, 3))
        assert (type(out), out.dtype, out.shape) == (FakeTensor, F32, (2, 4))
        with pytest.raises(DtypeError) as caught:
            model(torch.ones(2, 3, dtype=F64))
    assert caught.value.argument == "input"
    assert dtypeguard.casts() == []
    with pytest.warns(CastWarning):
        out = model(torch.ones(2, 3, dtype=F64))
    assert (type(out), out.dtype) == (FakeTensor, F32)
    assert dtypeguard.casts()[0].error is None  # there are no values to look at


def test_fake_tensors_are_never_asked_for_values(fake):
    model = guard(nn.Linear(3, 2, dtype=F16), verify="always")
    with pytest.warns(CastWarning):
        assert model(torch.full((1, 3), 1e30)).dtype is F16


def test_a_fake_gpu(fake):
    """Fake tensors are the one way to be on a GPU without one."""

    def gpu(*shape, dtype=F32, device="cuda:0"):
        return torch.empty(*shape, dtype=dtype, device=device)

    model = nn.Linear(3, 2, device="meta")
    model.weight, model.bias = (nn.Parameter(gpu(*shape), requires_grad=False) for shape in ((2, 3), (2,)))
    guard(model)
    with dtypeguard.mode("strict"):
        assert model(gpu(4, 3)).device == torch.device("cuda:0")
        for x, actual, expected in (
            (torch.ones(4, 3), "cpu", "cuda:0"),
            (gpu(4, 3, device="cuda:1"), "cuda:1", "cuda:0"),
        ):
            with pytest.raises(DeviceError) as caught:
                model(x)
            assert (caught.value.argument, str(caught.value.actual)) == ("input", actual)
            assert str(caught.value.expected) == expected
        with pytest.raises(DtypeError):
            model(gpu(4, 3, dtype=F64))
    with pytest.warns(CastWarning, match="cast from float64 to float32 and moved from cpu to cuda:0"):
        out = model(torch.ones(4, 3, dtype=F64))
    assert (out.dtype, out.device) == (F32, torch.device("cuda:0"))


def test_verification_does_not_look_inside_a_transform():
    model = guard(nn.Linear(3, 2, dtype=F16), verify="always")
    with pytest.warns(CastWarning):
        assert torch.vmap(model)(torch.full((2, 3), 1e30)).dtype is F16


# ---------------------------------------------------------------- subclasses with code of their own


class Counting(Tensor):
    """Writes down what is done to it."""

    seen: ClassVar = Counter()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen[getattr(func, "__name__", str(func))] += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def counting(dtype=F32):
    return halves(dtype).as_subclass(Counting)


class Gives(nn.Module):
    """Does nothing with what it gets, so all that a subclass sees is dtypeguard's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x, *more, y=None, **extra):
        return x


class EnforcedGives(Gives):
    @enforce
    def forward(
        self, x: Float[Tensor, "a b"], *more: Float[Tensor, "a b"], y: Float[Tensor, "a b"] | None = None, **extra
    ) -> Float[Tensor, "a b"]:
        return x


class GuardedGives(dtypeguard.GuardedModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Float[Tensor, "a b"], *more, y=None, **extra) -> Float[Tensor, "a b"]:
        return x


@dataclasses.dataclass
class Batch:
    x: Float[Tensor, "a b"]


class Pair(NamedTuple):
    x: Float[Tensor, "a b"]
    y: Float[Tensor, "a b"]


@enforce
def gives_axes(x: Float32[Tensor, "a b"], *more: Float[Tensor, "*any"], y: Float[Tensor, "a #b"] = None) -> Tensor:
    return x


@enforce(anchor="x")
def gives_anchored(x: Float[Tensor, "a b"], *more: Float[Tensor, "a b"]) -> Float[Tensor, "a b"]:
    return x


@enforce
def gives_either(x: Float32[Tensor, "a b"] | Float32[Tensor, "a"] | list[Float32[Tensor, "a"]]):
    return x


@enforce
def gives_list(x: list[Float32[Tensor, "a b"]]) -> list[Float32[Tensor, "a b"]]:
    return x


@enforce
def gives_dict(x: dict[str, Float32[Tensor, "a b"]]) -> dict[str, Float32[Tensor, "a b"]]:
    return x


@enforce
def gives_tuple(x: tuple[Float32[Tensor, "a b"], Float32[Tensor, "..."]]):
    return x


@enforce
def gives_batch(x: Batch):
    return x


@enforce
def gives_pair(x: Pair):
    return x


@enforce
def gives_one_by_one(x: Float32[Tensor, "a b"]):
    yield x


# name: the checked callable, and what is done with it
QUIET = {
    "guard": (lambda: guard(Gives()), lambda f, x: f(x)),
    "guard, keywords": (lambda: guard(Gives()), lambda f, x: f(x=x, y=x, z=x)),
    "guard, several": (lambda: guard(Gives()), lambda f, x: f(x, x, x)),
    "guard, list": (lambda: guard(Gives()), lambda f, x: f([x, [x]])),
    "guard, pairs": (lambda: guard(Gives()), lambda f, x: f(((x, x), (x, x)))),
    "guard, dict": (lambda: guard(Gives()), lambda f, x: f({"x": x, "y": {"x": x}})),
    "guard, dataclass": (lambda: guard(Gives()), lambda f, x: f(Batch(x))),
    "guard, named tuple": (lambda: guard(Gives()), lambda f, x: f(Pair(x, x))),
    "guard, every owner": (lambda: guard(nn.Sequential(Gives(), Gives()), depth="all"), lambda f, x: f(x)),
    "guard, output": (lambda: guard(Gives(), output_dtype=F32), lambda f, x: f(x)),
    "guard, dtype": (lambda: guard(Gives(), dtype=F32, device="cpu"), lambda f, x: f(x)),
    "guard, moved": (lambda: guard(Gives(), move_args=("x",)), lambda f, x: f(x)),
    "guard of enforce": (lambda: guard(EnforcedGives()), lambda f, x: f(x, x, y=x)),
    "guarded module": (GuardedGives, lambda f, x: f(x, x, y=x)),
    "enforce": (EnforcedGives, lambda f, x: f(x)),
    "enforce, keywords": (EnforcedGives, lambda f, x: f(x, x, y=x, z=x)),
    "function": (lambda: gives_axes, lambda f, x: f(x, x, y=x)),
    "anchored function": (lambda: gives_anchored, lambda f, x: f(x, x)),
    "union": (lambda: gives_either, lambda f, x: f(x)),
    "list": (lambda: gives_list, lambda f, x: f([x, x])),
    "dict": (lambda: gives_dict, lambda f, x: f({"x": x})),
    "tuple": (lambda: gives_tuple, lambda f, x: f((x, x))),
    "dataclass": (lambda: gives_batch, lambda f, x: f(Batch(x))),
    "named tuple": (lambda: gives_pair, lambda f, x: f(Pair(x, x))),
    "generator": (lambda: gives_one_by_one, lambda f, x: list(f(x))),
    "check": (lambda: dtypeguard.check, lambda f, x: f(x, Float32[Tensor, "a b"])),
}


class Shy(Tensor):
    """Answers to nobody but `add` and what makes one."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") not in ("add", "as_subclass"):
            raise PermissionError(func)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("way", QUIET)
def test_a_healthy_call_is_not_seen_by_a_subclass(way, strict):
    make, use = QUIET[way]
    f = make()
    use(f, halves(F32).as_subclass(Shy))
    for x, region in ((counting(), False), (counting(), False), (counting(F32 if "output" in way else BF16), True)):
        if region and not way.startswith(("guard", "enforce")):
            continue
        Counting.seen.clear()
        with torch.autocast("cpu", BF16, enabled=region):
            use(f, x)
        assert not Counting.seen
    assert dtypeguard.casts() == []


@pytest.mark.parametrize("mode", ["off", "lenient", "warn"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_what_is_not_floating_is_not_seen_by_a_subclass(dtype, mode):
    f, x = guard(Gives(), mode=mode), counting().to(dtype)
    Counting.seen.clear()
    assert f(x) is x
    assert f([x])[0] is x
    assert not Counting.seen


@pytest.mark.parametrize("depth", ["auto", "all"])
def test_a_healthy_call_is_not_seen_by_weights_of_a_subclass(depth, strict):
    model = linear()
    model.weight = nn.Parameter(model.weight.detach().as_subclass(Counting), requires_grad=False)
    x, seen = halves(F32), []
    for guarded in (False, True):
        if guarded:
            guard(model, depth=depth)
        Counting.seen.clear()
        result = model(x)
        seen.append(dict(Counting.seen))
    assert type(result) is Counting
    assert seen[0] == seen[1] == {"linear": 1}
    with pytest.raises(DtypeError) as caught:
        model(halves(F64))
    assert (caught.value.argument, caught.value.expected) == ("input", F32)


def test_an_enforced_method_is_not_seen_by_weights_of_a_subclass(strict):
    model = EnforcedGives()
    model.weight = nn.Parameter(counting(), requires_grad=False)
    Counting.seen.clear()
    model(halves(F32))
    model(halves(F32))
    assert not Counting.seen


@pytest.mark.parametrize("way", ["guard", "guard, list", "enforce", "function", "union", "check"])
def test_a_subclass_that_answers_nobody_is_named_all_the_same(way, strict):
    make, use = QUIET[way]
    with pytest.raises(DtypeGuardError) as caught:
        use(make(), halves(F64).as_subclass(Shy))
    assert "float64" in str(caught.value)


class Unit(Tensor):
    """Its unit goes with it through every operation."""

    unit = None

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Unit):
            result.unit = next((arg.unit for arg in args if isinstance(arg, Unit)), None)
        return result


@pytest.mark.parametrize(
    "way", ["guard", "guard, every owner", "guard of enforce", "guarded module", "enforce", "function"]
)
def test_a_repaired_subclass_is_what_to_makes_of_it(way):
    make, use = QUIET[way]
    x = halves(F64).as_subclass(Unit)
    x.unit = "kg"
    with pytest.warns(CastWarning):
        got = use(make(), x)
    assert (type(got), got.unit, got.dtype) == (Unit, x.to(F32).unit, F32)
    assert torch.equal(got, x.to(F32))
    assert (x.dtype, x.unit) == (F64, "kg")


class Stubborn(Tensor):
    """Becomes plain whatever is done to it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def test_a_subclass_that_to_makes_plain_is_plain_after_a_repair():
    with pytest.warns(CastWarning):
        assert type(guard(Gives())(halves(F64).as_subclass(Stubborn))) is Tensor
    assert type(guard(Gives(), mode="strict")(halves(F32).as_subclass(Stubborn))) is Stubborn


@enforce
def takes_tagged(x: Float32[Tagged, "a b"]) -> Float32[Tagged, "a b"]:
    return x


def test_an_annotation_may_ask_for_a_subclass():
    x = ODD["subclass"](F32)
    with dtypeguard.mode("strict"):
        assert takes_tagged(x) is x
        with pytest.raises(HintError, match="wants a Tagged"):
            takes_tagged(halves(F32))
        with pytest.raises(DtypeError):
            takes_tagged(x.double())
    with pytest.warns(CastWarning):
        assert alike(takes_tagged(x.double()), x)
    with pytest.raises(HintError, match="wants a Tagged"):
        takes_tagged(halves(F32))


@pytest.mark.parametrize("kind", [nn.Parameter, nn.Buffer, Stubborn])
def test_a_repair_never_breaks_the_class_that_an_annotation_wants(kind):
    """What `.to()` makes of these is a plain tensor."""

    @enforce
    def given(x: Float32[kind, "a b"]):
        return x

    def make(dtype):
        return halves(dtype).as_subclass(kind) if kind is Stubborn else kind(halves(dtype))

    assert isinstance(given(make(F32)), kind)
    with pytest.raises(CastError) as caught:
        given(make(F64))
    assert caught.value.argument == "x"


class Narrow(Tensor):
    """To the outside of any dtype, inside bfloat16."""

    @staticmethod
    def __new__(cls, inner, dtype):
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=dtype, device=inner.device)

    def __init__(self, inner, dtype) -> None:
        self.inner = inner.to(BF16)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].inner, args[0].dtype)
        if func is torch.ops.aten._to_copy.default:
            return cls(args[0].inner, kwargs.get("dtype", args[0].dtype))
        dense = [arg.inner.to(arg.dtype) if isinstance(arg, Narrow) else arg for arg in args]
        return func(*dense, **kwargs)


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_of_a_wrapper_subclass_the_outer_dtype_counts(dtype):
    model, x, wrong = linear().to(dtype), Narrow(halves(F32), dtype), Narrow(halves(F32), F64)
    expected = model(x)
    guard(model)
    with dtypeguard.mode("strict"):
        assert torch.equal(model(x), expected)
        with pytest.raises(DtypeError) as caught:
            model(wrong)
    assert (caught.value.argument, caught.value.actual) == ("input", F64)
    with pytest.warns(CastWarning):
        assert torch.equal(model(wrong), expected)
    with pytest.warns(CastWarning):
        arrived = guard(Gives().to(dtype))(wrong)
    assert (type(arrived), arrived.dtype, arrived.inner.dtype) == (Narrow, dtype, BF16)


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_of_a_wrapper_subclass_as_a_weight_the_outer_dtype_counts(dtype, strict):
    model, x = linear().to(dtype), halves(dtype)
    model.weight = nn.Parameter(Narrow(model.weight.detach(), dtype), requires_grad=False)
    expected = model(x)
    assert torch.equal(guard(model, depth="all")(x), expected)
    with pytest.raises(DtypeError) as caught:
        model(halves(F64))
    assert (caught.value.argument, caught.value.expected) == ("input", dtype)


WEIGHTS = {
    "subclass": lambda weight: weight.as_subclass(Tagged),
    "two tensors in one": lambda weight: TwoTensor(weight, weight.clone()),
    "logged": LoggingTensor,
    "sparse csr": lambda weight: weight.to_sparse_csr(),
    "negative view": torch._neg_view,
    "all zeros without storage": lambda weight: torch._efficientzerotensor(weight.shape),
}


@pytest.mark.parametrize("depth", ["auto", "all"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_odd_weights(name, depth):
    model, x = nn.Sequential(linear(), nn.Tanh()), halves(F32)
    model[0].weight = nn.Parameter(WEIGHTS[name](model[0].weight.detach()), requires_grad=False)
    expected = model(x)
    guard(model, depth=depth)
    with dtypeguard.mode("strict"):
        assert alike(model(x), expected)
        with pytest.raises(DtypeError) as caught:
            model(halves(F64))
    assert (caught.value.argument, caught.value.expected) == ("input", F32)
    assert "0.weight (f32[2,3]" in str(caught.value)
    assert dtypeguard.casts() == []
    with pytest.warns(CastWarning):
        assert alike(model(halves(F64)), expected)


# ---------------------------------------------------------------- what is logged, compiled, loaded


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("way", WAYS)
def test_a_healthy_call_runs_no_operation_of_its_own(way, strict):
    make, checked, give, _ = WAYS[way]
    seen = []
    for callable_, mode in ((make(), "off"), (checked(), None)):
        with Operations() as operations, dtypeguard.mode(mode or "strict"):
            callable_(*give(halves(F32)))
        seen.append(operations.seen)
    assert seen[0] == seen[1] != []


COMPILED = {
    "guard": lambda: guard(linear()),
    "guard, every owner": lambda: guard(nn.Sequential(linear(), nn.ReLU(), nn.Linear(2, 2)), depth="all"),
    "enforce": lambda: EnforcedScale(),
    "enforce, axes": lambda: ScaleOfAxes(),
    "function": lambda: double_of_axes,
}
# name: makes the tensor, and the backend; AOTAutograd itself does not know a subclass without `__torch_dispatch__`
KINDS = {
    "plain": (halves, "aot_eager"),
    "parameter": (ODD["parameter"], "aot_eager"),
    "two tensors in one": (ODD["two tensors in one"], "aot_eager"),
    "subclass": (ODD["subclass"], "eager"),
    "counting": (counting, "eager"),
}


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    yield lambda f, backend: torch.compile(f, backend=backend, fullgraph=True)
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", COMPILED)
def test_subclasses_compile_in_one_graph(way, kind, compiled):
    tensor, backend = KINDS[kind]
    f, x, wrong = COMPILED[way](), tensor(F32), tensor(F64)
    with dtypeguard.mode("off"):
        expected = f(x)
    quick = compiled(f, backend)
    with dtypeguard.mode("strict"):
        assert alike(quick(x), expected)
        assert dtypeguard.casts() == []
        with pytest.raises(torch._dynamo.exc.Unsupported, match="is float64"):
            quick(wrong)
    with pytest.warns(CastWarning):
        assert alike(quick(wrong), expected)


# ---------------------------------------------------------------- torchao


def int_weights(bits, dynamic=False):
    def config():
        from torchao import quantization
        from torchao.quantization.granularity import PerGroup

        made = quantization.Int8DynamicActivationIntxWeightConfig if dynamic else quantization.IntxWeightOnlyConfig
        key = "weight_granularity" if dynamic else "granularity"
        return made(weight_dtype=getattr(torch, f"int{bits}"), **{key: PerGroup(32)})

    return config


def torchao(name):
    def config():
        from torchao import quantization

        return getattr(quantization, name)()

    return config


# name: what `quantize_` is given. int4 and dynamic float8 kernels of torchao itself need a GPU.
QUANTIZED = {
    "int8 weights": torchao("Int8WeightOnlyConfig"),
    "int8 weights, dynamic int8 inputs": torchao("Int8DynamicActivationInt8WeightConfig"),
    "float8 weights": torchao("Float8WeightOnlyConfig"),
    "int4 weights": int_weights(4),
    "int2 weights": int_weights(2),
    "int4 weights, dynamic int8 inputs": int_weights(4, dynamic=True),
}


def small(dtype=F32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.LayerNorm(96), nn.Linear(96, 32)).to(dtype).eval()


def quantize(model, name):
    from torchao.quantization import quantize_

    quantize_(model, QUANTIZED[name]())
    return model


@pytest.mark.thin(6)
@pytest.mark.parametrize("depth", ["auto", "all"])
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("name", QUANTIZED)
@torch.no_grad()
def test_weights_quantized_by_torchao(name, dtype, depth):
    x, wrong = torch.randn(4, 64).to(dtype), torch.randn(4, 64, dtype=F64)
    bare = quantize(small(dtype), name)
    expected, by_hand = bare(x), bare(wrong.to(dtype))
    first, last = quantize(guard(small(dtype), depth=depth), name), guard(quantize(small(dtype), name), depth=depth)
    loaded = guard(small(dtype), depth=depth)
    loaded.load_state_dict({key: value.clone() for key, value in last.state_dict().items()}, assign=True)
    for model in (first, last, loaded, copy.deepcopy(last)):
        assert type(model[0].weight) is type(bare[0].weight) is not nn.Parameter
        assert is_guarded(model[0]) is (depth == "all")
        dtypeguard.reset_casts()
        with dtypeguard.mode("strict"):
            assert torch.equal(model(x), expected)
            for source in {F16, BF16, F32, F64} - {dtype}:
                with pytest.raises(DtypeError) as caught:
                    model(x.to(source))
                assert (caught.value.argument, caught.value.actual, caught.value.expected) == ("input", source, dtype)
        assert dtypeguard.casts() == []
        with pytest.warns(CastWarning) as said:
            assert torch.equal(model(wrong), by_hand)
        assert ours(said) == [CastWarning]


# ---------------------------------------------------------------- torch.ao.quantization


def dynamic(model):
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


@pytest.mark.parametrize("depth", ["auto", "all"])
def test_a_dynamically_quantized_model_without_floating_parameters(depth):
    """Nothing is left to say what it takes, so torch does, or the guard's own `dtype`."""
    x, bare = torch.randn(4, 64), dynamic(nn.Sequential(*[small()[i] for i in (0, 1)]))
    expected = bare(x)
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Double") as torchs:
        bare(x.double())
    model = guard(bare, depth=depth)
    with dtypeguard.mode("strict"):
        assert torch.equal(model(x), expected)
        with pytest.raises(RuntimeError, match="expected scalar type") as caught:
            model(x.double())
        assert str(caught.value) == str(torchs.value)
        told = guard(model, dtype=F32, depth=depth)
        assert torch.equal(told(x), expected)
        with pytest.raises(DtypeError) as caught:
            told(x.double())
    assert (caught.value.argument, caught.value.expected) == ("input", F32)
    with pytest.warns(CastWarning):
        assert torch.equal(told(x.double()), expected)
