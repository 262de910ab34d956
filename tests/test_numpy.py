"""NumPy arrays: as annotated, and given where a tensor is wanted."""

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float, Float16, Float32, Float64, Int64, Num, Shaped
from torch import Tensor, nn

from dtypeguard import (
    CastError,
    CastWarning,
    DtypeError,
    DtypeGuardError,
    HintError,
    InplaceOnCastWarning,
    ShapeError,
    casts,
    enforce,
)

Row = Float32[Tensor, "n"]
NumpyRow = Float32[np.ndarray, "n"]


def of(hint, **options):
    def f(x):
        return x

    f.__annotations__ = {"x": hint}
    return enforce(**options)(f)


def array(dtype="float32", n=3):
    return np.arange(n, dtype=dtype)


# ---------------------------------------------------------------- annotated as np.ndarray


@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (NumpyRow, array()),
        (Float[np.ndarray, "n"], array("float64")),
        (Float[np.ndarray, "n"], array("float16")),
        (Int64[np.ndarray, "n"], array("int64")),
        (Bool[np.ndarray, "n"], array("bool", 2)),
        (Num[np.ndarray, "n"], array("uint16")),
        (Shaped[np.ndarray, "n"], np.array(["a", "b"])),
        (Shaped[np.ndarray, "..."], np.array(None)),
        (Float32[np.ndarray, ""], np.array(1, "float32")),
        (NumpyRow, array(">f4")),
        (NumpyRow, array()[::-1]),
        (NumpyRow, np.ma.masked_array([1, 2], dtype="float32")),
        (NumpyRow | None, None),
        (list[NumpyRow], [array(), array()]),
    ],
    ids=str,
)
def test_a_right_array_arrives_as_the_same_object(hint, value, mode):
    assert of(hint, mode=mode)(value) is value


def test_a_wrong_array_raises_in_strict(strict):
    @enforce
    def pair(x: NumpyRow, y: Row):
        return x

    with pytest.raises(DtypeError, match="float64") as caught:
        of(NumpyRow)(array("float64"))
    assert caught.value.argument == "x"
    assert pair(array(), torch.zeros(3)).shape == (3,)
    for wrong in (lambda: of(NumpyRow)(np.zeros((3, 3), "float32")), lambda: pair(array(), torch.zeros(4))):
        with pytest.raises(ShapeError):
            wrong()
    for wrong in ([1.0], torch.zeros(3)):
        for mode in ("strict", "lenient"):
            with pytest.raises(HintError):
                of(NumpyRow, mode=mode)(wrong)


def test_a_wrong_array_is_cast_in_lenient_and_stays_an_array():
    def f(x):
        return array("float64") if x is None else x

    f.__annotations__ = {"x": NumpyRow | None, "return": NumpyRow}
    x = array("float64")
    for given in (x, None):
        with pytest.warns(CastWarning, match="float64 to float32"):
            got = enforce(f)(given)
        assert type(got) is np.ndarray
        assert got.dtype == np.float32
        assert np.array_equal(got, x)
    assert x.dtype == np.float64
    assert [(r.from_dtype, r.to_dtype, r.bytes) for r in casts()] == [(torch.float64, torch.float32, 12)] * 2


@pytest.mark.parametrize(
    ("dtype", "casting", "allowed"),
    [
        ("float16", "safe", True),
        ("float64", "safe", False),
        ("float64", "precision", True),
        ("int64", "precision", False),
        ("bool", "precision", False),
        ("int64", "promote", True),
        ("complex64", "promote", False),
        ("complex64", "unsafe", True),
    ],
)
@pytest.mark.parametrize("hint", [NumpyRow, Row], ids=["array", "tensor"])
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning", "ignore:Casting complex values")
def test_arrays_climb_the_same_casting_ladder(hint, dtype, casting, allowed):
    x = array(dtype, 2)
    if allowed:
        with pytest.warns(CastWarning):
            assert "float32" in str(of(hint, casting=casting)(x).dtype)
    else:
        with pytest.raises(CastError):
            of(hint, casting=casting)(x)
    assert x.dtype == dtype


@pytest.mark.parametrize("dtype", ["object", "U3", "S3", "datetime64[s]", "V4", [("a", "f4")]], ids=str)
@pytest.mark.parametrize("hint", [NumpyRow, Row, Float[np.ndarray, "n"], Shaped[Tensor, "n"]], ids=str)
@pytest.mark.parametrize("mode", ["strict", "lenient"])
@pytest.mark.parametrize("casting", ["precision", "unsafe"])
def test_arrays_of_what_is_no_number_are_refused_in_our_words(hint, dtype, mode, casting):
    """No cast of ours makes numbers of strings, objects or dates, `unsafe` or not."""
    with pytest.raises(DtypeGuardError, match="`x`"):
        of(hint, mode=mode, casting=casting)(np.zeros(2, dtype))


def test_a_union_of_array_and_tensor_takes_both_and_repairs_each_to_its_own_kind():
    f = of(Float32[np.ndarray, "n"] | Float32[Tensor, "n"])
    x, y = array(), torch.zeros(3)
    assert f(x) is x
    assert f(y) is y
    with pytest.warns(CastWarning):
        assert type(f(array("float64"))) is np.ndarray
    with pytest.warns(CastWarning):
        assert type(f(y.double())) is Tensor


# ---------------------------------------------------------------- given for a tensor


def readonly(dtype="float32"):
    x = array(dtype)
    x.flags.writeable = False
    return x


ARRAYS = {
    "plain": array(),
    "another dtype": array("float64"),
    "half": array("float16"),
    "read-only": readonly(),
    "read-only of another dtype": readonly("float64"),
    "negative stride": array()[::-1],
    "negative stride of another dtype": array("float64")[::-1],
    "every second": array(n=6)[::2],
    "byte-swapped": array(">f4"),
    "byte-swapped of another dtype": array(">f8"),
    "broadcast": np.broadcast_to(np.float32(2), (3,)),
    "not aligned": np.frombuffer(b"\0" * 13, dtype="uint8")[1:].view("float32"),
    "empty": array(n=0),
    "column of a structure": np.zeros(3, [("a", "u1"), ("b", "f4")])["b"],
}


@pytest.mark.parametrize("x", ARRAYS.values(), ids=ARRAYS.keys())
def test_an_array_for_a_tensor_is_converted_in_lenient_with_its_values(x):
    """Never with its memory: whether it were shared would depend on dtype, strides and flags, and nobody would know."""

    @enforce
    def f(x: Row, y: Row):
        assert x is y
        before = x.clone()
        x.add_(100)
        return before

    before, flags, strides = x.copy(), x.flags.writeable, x.strides
    with pytest.warns(CastWarning, match="NumPy array") as said:
        got = f(x, x)
    assert {w.category for w in said} <= {CastWarning, InplaceOnCastWarning}, "torch has nothing to warn about"
    assert type(got) is Tensor
    assert got.dtype is torch.float32
    assert np.array_equal(got.numpy(), before.astype("float32"))
    assert np.array_equal(x, before)
    assert (x.flags.writeable, x.strides) == (flags, strides)


@pytest.mark.parametrize("given", ARRAYS.values(), ids=ARRAYS.keys())
def test_what_the_error_says_to_write_runs(strict, given):
    with pytest.raises(HintError, match="ndarray") as caught:
        of(Row)(given[:])
    row = eval(caught.value.fix, {"given": given, "torch": torch})
    assert np.array_equal(of(Row)(row).numpy(), given.astype("float32"))


SCALARS = [np.array(1.5, "float32"), np.float32(1.5), np.array(1.5), np.float64(1.5), np.float16(1.5)]


@pytest.mark.parametrize("value", SCALARS, ids=repr)
def test_zero_axes_and_numpy_scalars_become_tensors_of_zero_axes(value):
    with pytest.warns(CastWarning):
        got = of(Float32[Tensor, ""])(value)
    assert got.dtype is torch.float32
    assert got.shape == ()
    assert got.item() == 1.5
    with pytest.raises(HintError) as caught:
        of(Float32[Tensor, ""], mode="strict")(value)
    assert torch.equal(eval(caught.value.fix.partition(", or ")[0], {"value": value, "torch": torch}), got)


NUMBERS = {  # by hint and value
    (Float[Tensor, "..."], 1.5): "torch.tensor({})",
    (Float[Tensor, "..."], 1): "torch.tensor({}, dtype=torch.float32)",
    (Int64[Tensor, "..."], ((1, 2), (3, True))): "torch.tensor({})",
    (Bool[Tensor, "..."], (True, False)): "torch.tensor({})",
    (Float16[Tensor, "..."], (0.5, 1)): "torch.tensor({}, dtype=torch.float16)",
    (Int64[Tensor, "..."], 1.5): "pass a Tensor",  # a number would change
    (Float[Tensor, "..."], ((1.0, 2.0), (3.0,))): "pass a Tensor",  # ragged
    (Float[Tensor, "..."], ()): "pass a Tensor",
    (Float[Tensor, "..."], "1.5"): "pass a Tensor",
}


@pytest.mark.parametrize("hint", NUMBERS, ids=str)
def test_numbers_for_a_tensor(hint):
    hint, value = hint
    with pytest.raises(HintError) as caught:
        of(hint)(value)
    assert caught.value.fix == NUMBERS[hint, value].format("value")
    if caught.value.fix != "pass a Tensor":
        of(hint)(eval(caught.value.fix, {"value": value, "torch": torch}))


def test_the_dtype_of_numbers_is_the_modules():
    class Scaled(nn.Linear):
        def forward(self, x: Float[Tensor, "..."]):
            return x

    with pytest.raises(HintError) as caught:
        enforce(Scaled)(2, 2, dtype=torch.float16)([0.5, 1.5])
    assert caught.value.fix == "torch.tensor([0.5, 1.5], dtype=torch.float16)"


def test_the_shape_of_an_array_is_checked_in_every_mode():
    for x in (np.zeros((3, 3)), np.array(1.5), np.float32(3)):
        with pytest.raises((ShapeError, HintError)):
            of(Row)(x)
        with pytest.raises(DtypeGuardError):
            of(Row, mode="strict")(x)


def test_a_narrowing_of_an_array_is_verified_too():
    """float64's largest value is infinite in float32."""
    for hint in (Row, NumpyRow):
        with pytest.raises(CastError, match="infinite"):
            of(hint)(np.full(3, np.finfo("float64").max))


@pytest.mark.parametrize(
    ("name", "family"), [("int64", Int64), ("bool", Bool), ("float64", Float64), ("uint16", Num), ("complex64", Num)]
)
def test_an_array_of_the_right_dtype_is_converted_and_not_cast(name, family):
    with pytest.warns(CastWarning):
        assert str(of(family[Tensor, "n"])(array(name, 2)).dtype) == f"torch.{name}"
    assert casts()[0].from_dtype is casts()[0].to_dtype is getattr(torch, name)
    assert casts()[0].what == "NumPy -> cpu"


@pytest.mark.parametrize(
    "x", [[1.0, 2.0], (1.0,), 1.5, memoryview(b"abcd"), "text", object()], ids=lambda x: type(x).__name__
)
@pytest.mark.parametrize("mode", ["strict", "lenient"])
def test_what_only_could_become_an_array_is_refused(x, mode):
    with pytest.raises(HintError):
        of(Row, mode=mode)(x)


def test_a_masked_array_is_not_converted_because_its_mask_would_be_lost():
    with pytest.raises(DtypeGuardError):
        of(Row)(np.ma.masked_array([1, 2], mask=[True, False], dtype="float32"))


def test_arrays_inside_containers_are_converted_too():
    with pytest.warns(CastWarning):
        got = of(dict[str, list[Row]])({"a": [array(), torch.zeros(3)]})
    assert type(got["a"][0]) is Tensor
    with pytest.raises(HintError) as caught:
        of(dict[str, list[Row]], mode="strict")({"a": [torch.zeros(3), array()]})
    assert caught.value.argument == "x['a'][1]"


def test_a_method_of_a_module_converts_to_its_own_dtype():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        @enforce
        def forward(self, x: Float[Tensor, "n 3"], index: Int64[Tensor, "n"] = None):
            return self.layer(x)

    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        net = Net().to(dtype)
        with pytest.warns(CastWarning):
            assert net(np.ones((2, 3)), array("int64", 2)).dtype is dtype
    with pytest.warns(CastWarning):
        assert net.to("meta")(np.ones((2, 3))).is_meta


def test_an_array_that_is_written_to_is_not_converted():
    @enforce(mutates=("x",))
    def f(x: Row):
        x.add_(1)

    for dtype in ("float32", "float64"):
        x = array(dtype)
        with pytest.raises(DtypeGuardError, match="`x`"):
            f(x)
        assert np.array_equal(x, array(dtype))


def test_warn_and_off_change_no_array():
    x = array("float64")
    assert of(Row, mode="off")(x) is x
    with pytest.warns(UserWarning, match="ndarray"):
        assert of(Row, mode="warn")(x) is x
