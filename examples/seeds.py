"""Common dtype problems, one function each: first PyTorch alone, then dtypeguard. Every claim is asserted.

| row | problem |
|---|---|
| A1  | a loss casts its argument inside: does the caller's tensor change? |
| A2  | a cast whose result is thrown away |
| A3  | a loss takes two dtypes and fails in backward |
| B1  | integers times floats: a promotion that no line asks for |
| B2  | an `assert` on a dtype in an optimisation routine |
| B3  | from NumPy to PyTorch and back |
| B4  | a wrong dtype that begins at another line |
| C1  | a tensor on another device than the module |
| C2  | integers that `forward` converts to floats |
| C3  | an in-place operation on a half-precision argument |
| D1  | float32 input for float16 weights |
| D2  | gradients through mismatched dtypes |
| D3  | a kernel that accepts only float32 |
| E1  | integers and floats, added and multiplied |
| E2  | integers from a NumPy loader |
| E3  | a model in float16, a GradScaler and autocast |

Run all with `python examples/seeds.py`, or some with `python examples/seeds.py A1 D3`.
"""

import ctypes
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

import dtypeguard


def say(who: str, text: object) -> None:
    print(f"  {who:<11} {text}")


@contextmanager
def lenient() -> Iterator[list[str]]:
    """Lenient mode, with the texts of dtypeguard's warnings collected. Other warnings are not changed."""
    texts: list[str] = []
    dtypeguard.reset_casts()  # each repair warns once; after this it warns again
    with warnings.catch_warnings(record=True) as caught, dtypeguard.mode("lenient"):
        warnings.simplefilter("always", dtypeguard.DtypeGuardWarning)
        yield texts
        texts += [str(warning.message) for warning in caught]


def raised(kind: type[Exception], call: Callable[..., Any], *args: Any) -> Any:
    """The error that a call raises, which must be of that kind."""
    try:
        call(*args)
    except kind as error:
        return error
    raise AssertionError(f"this call should have raised {kind.__name__}")


def failure(kind: type[Exception], call: Callable[..., Any], *args: Any) -> str:
    """The first line of the error that a call raises."""
    error = raised(kind, call, *args)
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def row(cast: Any) -> str:
    """A row of the table of casts that an audit prints."""
    dtypes = f"{cast.from_dtype} > {cast.to_dtype}".replace("torch.", "")
    where = f"{cast.site}, of {cast.module_path}" if cast.module_path else cast.site
    return f"audit: {cast.kind} ({cast.op}) {dtypes}, {cast.count}x, {cast.bytes:,} bytes, at {where}"


def a1_cast_inside_a_loss() -> None:
    """The function gets the declared dtype; the caller's tensor and the dtype of its gradient do not change."""
    predictions = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([1.1, 2.1, 3.1])

    def by_hand(predictions: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(predictions.float(), targets)  # a new tensor: `predictions` does not change

    assert F.mse_loss(predictions, targets).dtype is torch.float64
    assert by_hand(predictions, targets).dtype is torch.float32
    say("PyTorch", "float64 predictions make a float64 loss, silently, unless the body casts them by hand")

    @dtypeguard.enforce
    def loss(predictions: Float32[Tensor, "n"], targets: Float32[Tensor, "n"]) -> Float32[Tensor, ""]:
        assert predictions.dtype is torch.float32
        return F.mse_loss(predictions, targets)

    with lenient() as said:
        value = loss(predictions, targets)
        value.backward()
    assert torch.equal(value, by_hand(predictions, targets))
    assert predictions.dtype is torch.float64
    assert predictions.grad is not None
    assert predictions.grad.dtype is torch.float64
    assert len(said) == 1
    say("dtypeguard", said[0])
    say("dtypeguard", f"the loss is {value.dtype}; the caller's tensor and its gradient stay {predictions.grad.dtype}")


def a2_discarded_cast() -> None:
    """A cast whose result is not used changes nothing. The audit names the line."""
    targets = torch.tensor([1.1, 2.1, 3.1])

    def flawed(predictions: Tensor) -> Tensor:
        predictions.type(torch.float32)
        return F.mse_loss(predictions, targets)

    def mended(predictions: Tensor) -> Tensor:
        predictions = predictions.type(torch.float32)
        return F.mse_loss(predictions, targets)

    predictions = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert flawed(predictions).dtype is torch.float64
    say("PyTorch", "predictions.type(torch.float32) raises no error, and the loss is float64")

    report = dtypeguard.audit(flawed, predictions)
    discarded, promoted = report.findings
    assert (discarded.rule, discarded.source) == ("DG103", "predictions.type(torch.float32)")
    assert (promoted.rule, promoted.source) == ("DG101", "return F.mse_loss(predictions, targets)")
    say("dtypeguard", f"audit: {discarded.rule} at {discarded.site}")
    say("dtypeguard", f"audit: {discarded.message}; {discarded.fix}")
    dtypeguard.audit(mended, predictions).assert_clean()


def a3_fails_in_backward() -> None:
    """A loss that fails only in backward needs no cast in its body."""
    predictions = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([1.1, 2.1, 3.1])

    loss = F.huber_loss(predictions, targets)  # no error here, but in backward
    say("PyTorch", f"huber_loss passes, its backward does not: {failure(RuntimeError, loss.backward)}")

    @dtypeguard.enforce
    def huber(predictions: Float32[Tensor, "n"], targets: Float32[Tensor, "n"]) -> Float32[Tensor, ""]:
        return F.huber_loss(predictions, targets)

    with dtypeguard.mode("strict"):
        say("dtypeguard", f"strict: {failure(dtypeguard.DtypeError, huber, predictions, targets)}")
    with lenient():
        huber(predictions, targets).backward()
    assert predictions.grad is not None
    assert predictions.grad.dtype is torch.float64
    say("dtypeguard", f"lenient: backward works, and the gradient is {predictions.grad.dtype}")


ROUTINE = """
def asserted(x):
    assert x.dtype == torch.float32, "Input tensor must be float32"
    return x - 0.1 * x


@dtypeguard.enforce(mode="strict")
def enforced(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return x - 0.1 * x
"""


def b1_integers_times_floats() -> None:
    """PyTorch promotes mixed dtypes. The audit says where, which dtypes, and how many bytes."""
    counts, prices = torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([4.0, 5.0, 6.0])
    total = counts * prices
    assert total.dtype is torch.float32
    say("PyTorch", "int32 * float32 does not fail: it is float32, silently")

    with dtypeguard.audit() as report:
        total = counts * prices
    (finding,) = report.findings
    assert (finding.rule, finding.severity, finding.source) == ("DG102", "info", "total = counts * prices")
    assert (finding.from_dtype, finding.to_dtype, finding.bytes) == (torch.int32, torch.float32, 3 * 4)
    (cast,) = report.casts
    assert (cast.kind, cast.from_dtype, cast.to_dtype, cast.bytes) == ("promotion", torch.int32, torch.float32, 3 * 4)
    say("dtypeguard", f"audit: {finding.severity} {finding.rule}, {finding.message}")
    say("dtypeguard", row(cast))
    report.assert_clean()  # between integers and floats it is usually meant: said, and no fault


def b2_assert_in_a_routine() -> None:
    """`enforce` checks the same as a hand-written `assert`. Its error says more, and `python -O` does not remove it."""
    x = torch.ones(10, dtype=torch.float64)
    routines: dict[str, Any] = dict(globals())
    exec(compile(ROUTINE, "routine.py", "exec", optimize=0), routines)
    say("PyTorch", failure(AssertionError, routines["asserted"], x))

    exec(compile(ROUTINE, "routine.py", "exec", optimize=1), routines)  # what `python -O` does
    assert routines["asserted"](x).dtype is torch.float64
    say("PyTorch", "under python -O the assert is gone and float64 passes")
    say("dtypeguard", f"under python -O: {failure(dtypeguard.DtypeError, routines['enforced'], x)}")
    assert routines["enforced"](x.float()).dtype is torch.float32


def b3_numpy_and_back() -> None:
    """Annotations on arrays and on tensors are both enforced, and repaired in lenient mode."""
    data = np.array([[1, 2, 3], [4, 5, 6]], dtype=np.float64)
    scaled = torch.from_numpy(data) * 0.5
    assert scaled.dtype is torch.float64
    say("PyTorch", "from_numpy keeps float64, and so does everything after it")

    @dtypeguard.enforce
    def normalised(array: Float32[np.ndarray, "rows 3"]) -> Float32[np.ndarray, "rows 3"]:
        return array / np.linalg.norm(array, axis=1, keepdims=True)

    @dtypeguard.enforce
    def row_sums(x: Float32[Tensor, "rows 3"]) -> Float32[Tensor, "rows"]:
        return x.sum(dim=1)

    with dtypeguard.mode("strict"):
        say("dtypeguard", f"strict: {failure(dtypeguard.DtypeError, normalised, data)}")
    with lenient() as said:
        array = normalised(data)
        sums = row_sums(data)  # an array where a tensor is declared
    assert (array.dtype, sums.dtype, data.dtype) == (np.float32, torch.float32, np.float64)
    assert torch.equal(sums, torch.tensor([6.0, 15.0]))
    assert len(said) == 2
    for text in said:
        say("dtypeguard", f"lenient: {text}")


def b4_lineage() -> None:
    """The audit names the line where the dtype of a tensor begins."""

    def loaded() -> Tensor:
        pixels = np.array([[0, 51, 102], [153, 204, 255]], dtype=np.float64)
        return torch.from_numpy(pixels)

    def scaled(images: Tensor) -> Tensor:
        return images / 255

    layer = nn.Linear(3, 1)
    say("PyTorch", failure(RuntimeError, layer, scaled(loaded())))

    dtypeguard.guard(layer, mode="strict")
    with dtypeguard.audit() as report:
        images = scaled(loaded())
        error = raised(dtypeguard.DtypeError, layer, images)
    assert error.origin == report.origin(images)
    born, divided = error.origin
    assert "from_numpy(pixels)" in born
    assert "images / 255" in divided
    assert all(line in str(error) for line in error.origin)
    for line in error.origin:
        say("dtypeguard", f"origin: {line}")


def c1_other_device() -> None:
    """Guard moves a tensor to its module, or names the argument and both devices.

    The module is on the meta device, which stands in for an accelerator so that this runs anywhere: a tensor really
    moves there, but meta tensors have a dtype and a shape and no values.
    """
    model = nn.Linear(10, 4, device="meta")
    x = torch.randn(2, 10)
    say("PyTorch", failure(RuntimeError, model, x))

    dtypeguard.guard(model, mode="strict")
    say("dtypeguard", f"strict: {failure(dtypeguard.DeviceError, model, x)}")

    dtypeguard.guard(model, mode="lenient")
    with lenient() as said:
        output = model(x)
    assert output.device.type == "meta"
    assert output.shape == (2, 4)
    assert x.device.type == "cpu"
    say("dtypeguard", f"lenient: {said[0]}")


def c2_integers_made_floats_inside() -> None:
    """The audit lists the conversion under its module. `enforce` requires the dtype at the call."""

    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.float() * 2

    class Stated(nn.Module):
        @dtypeguard.enforce(casting="promote")
        def forward(self, x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
            return x * 2

    x = torch.arange(5)
    by_hand = Doubled()(x)
    assert by_hand.dtype is torch.float32
    say("PyTorch", f"{x.dtype} goes in, {by_hand.dtype} comes out, and only the body of forward says so")

    model = nn.Sequential(Doubled())
    with dtypeguard.audit(model) as report:
        model(x)
    (cast,) = report.casts
    assert (cast.kind, cast.from_dtype, cast.to_dtype) == ("explicit", torch.int64, torch.float32)
    assert cast.module_path == "Sequential.0"
    say("dtypeguard", row(cast))

    with lenient() as said:
        assert torch.equal(Stated()(x), by_hand)
    say("dtypeguard", f"enforce: {said[0]}")
    with dtypeguard.mode("strict"):
        say("dtypeguard", f"enforce, strict: {failure(dtypeguard.DtypeError, Stated(), x)}")


class PlusOne(nn.Module):
    """Adds one to its argument, in place, and scales it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((5,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        return x * self.scale


def c3_in_place_on_a_cast_copy() -> None:
    """A module that writes to its argument would write to a copy. dtypeguard warns about that."""
    model = PlusOne()
    x = torch.zeros(5, dtype=torch.float16)
    model(x)
    assert torch.equal(x, torch.ones_like(x))
    say("PyTorch", "x.add_(1) changes the caller's float16 tensor")

    dtypeguard.guard(model, mode="lenient")
    x = torch.zeros(5, dtype=torch.float16)
    with lenient() as said:
        output = model(x)
    assert torch.equal(output, torch.full((5,), 2.0))
    assert torch.equal(x, torch.zeros_like(x))
    cast, in_place = said
    say("dtypeguard", cast)
    say("dtypeguard", in_place)

    plain = PlusOne()
    with dtypeguard.audit() as report:
        plain(torch.zeros(5, dtype=torch.float16))
    (hidden,) = report.casts
    assert (hidden.kind, hidden.op, hidden.module_path) == ("promotion", "mul", "PlusOne")
    say("dtypeguard", f"{row(hidden)}; add_ casts nothing")


def d1_one_cast_at_the_boundary() -> None:
    """An input of another dtype than the weights is cast once, and the copied bytes are counted."""
    torch.manual_seed(0)
    first = nn.Linear(1024, 256)
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(256, 16)).half()
    x = torch.randn(64, 1024)
    say("PyTorch", failure(RuntimeError, model, x))

    by_hand = model(x.half())
    dtypeguard.guard(model)
    with lenient():
        output = model(x)
    assert torch.equal(output, by_hand)
    (cast,) = dtypeguard.casts()
    assert (cast.from_dtype, cast.to_dtype, cast.count) == (torch.float32, torch.float16, 1)
    assert cast.bytes == 64 * 1024 * 2
    say("dtypeguard", f"{cast.count} cast of {cast.bytes:,} bytes for both layers, at {cast.site}")

    with dtypeguard.audit() as report, lenient():
        F.linear(x, first.weight.float(), first.bias.float())  # another way to make them meet
        model(x)
    weight, at_the_boundary, _ = report.casts
    assert weight.bytes == first.weight.numel() * 4 == 8 * at_the_boundary.bytes
    assert at_the_boundary.bytes == cast.bytes
    say("dtypeguard", row(weight))
    say("dtypeguard", row(at_the_boundary))


def d2_gradients_in_their_own_dtype() -> None:
    """Casts are differentiable: each gradient has the dtype of the caller's tensor."""
    torch.manual_seed(0)
    x = torch.randn(4, 10, requires_grad=True)
    weight = torch.randn(10, 10, dtype=torch.float16, requires_grad=True)
    say("PyTorch", failure(RuntimeError, torch.matmul, x, weight))

    @dtypeguard.enforce
    def project(x: Float32[Tensor, "n k"], weight: Float32[Tensor, "k m"]) -> Float32[Tensor, "n m"]:
        return x @ weight

    with lenient() as said:
        project(x, weight).sum().backward()
    assert x.grad is not None
    assert weight.grad is not None
    assert (x.grad.dtype, weight.grad.dtype) == (torch.float32, torch.float16)
    say("dtypeguard", said[0])
    say("dtypeguard", f"x.grad is {x.grad.dtype}, weight.grad is {weight.grad.dtype}")


def floats_at(tensor: Tensor) -> np.ndarray:
    """The memory of a tensor read as float32, whatever it holds: what a compiled kernel does with a pointer."""
    return np.ctypeslib.as_array((ctypes.c_float * tensor.numel()).from_address(tensor.data_ptr()))


# PyTorch cannot infer a schema from jaxtyping annotations, so it is written out; `(a!)` marks what is written to.
@torch.library.custom_op(
    "dtypeguard_examples::add_scaled",
    mutates_args=("out",),
    schema="(Tensor(a!) out, Tensor x, float scale) -> ()",
)
def add_scaled(out: Float32[Tensor, "n"], x: Float32[Tensor, "n"], scale: float) -> None:
    """out += scale * x"""
    target = floats_at(out)
    target += scale * floats_at(x)


def d3_float32_kernel() -> None:
    """Dtype and shape are checked before a kernel runs; the argument it writes to is checked, and never cast."""
    x = torch.arange(4, dtype=torch.float64)
    right = torch.tensor([0.0, 2.0, 4.0, 6.0])

    out = torch.zeros(4)
    add_scaled(out, x, 2.0)
    assert not torch.equal(out, right)
    say("PyTorch", f"2 * {x.tolist()} = {out.tolist()}: the kernel read float64 memory as float32")

    checked = dtypeguard.enforce(add_scaled)
    with dtypeguard.mode("strict"):
        say("dtypeguard", f"strict: {failure(dtypeguard.DtypeError, checked, torch.zeros(4), x, 2.0)}")
        say("dtypeguard", f"strict: {failure(dtypeguard.ShapeError, checked, torch.zeros(4), torch.ones(5), 2.0)}")
    out, wide = torch.zeros(4), torch.zeros(4, dtype=torch.float64)
    with lenient():
        checked(out, x, 2.0)
        refused = failure(dtypeguard.CastError, checked, wide, x, 2.0)
    assert torch.equal(out, right)
    assert torch.equal(wide, torch.zeros_like(wide))
    say("dtypeguard", f"lenient: x is cast, and the result is {out.tolist()}")
    say("dtypeguard", f"lenient: {refused}")


def e1_integers_and_floats() -> None:
    """A sum and a product: the audit has a row for each line. A cast shows that the promotion is meant."""
    a, b = torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([1.5, 2.5, 3.5])
    c, d = a + b, a * b
    assert c.dtype is d.dtype is torch.float32
    say("PyTorch", f"int32 + float32 = {c.tolist()} and int32 * float32 = {d.tolist()}, both {d.dtype}")

    with dtypeguard.audit() as report:
        c = a + b
        d = a * b
    assert [finding.rule for finding in report.findings] == ["DG102", "DG102"]
    assert [(cast.op, cast.kind, cast.bytes) for cast in report.casts] == [
        ("add", "promotion", 12),
        ("mul", "promotion", 12),
    ]
    for cast in report.casts:
        say("dtypeguard", row(cast))

    with dtypeguard.audit() as report:
        a_float = a.to(torch.float32)
        assert torch.equal(a_float + b, c)
        assert torch.equal(a_float * b, d)
    assert report.findings == []
    (cast,) = report.casts
    assert (cast.kind, cast.bytes) == ("explicit", 12)
    say("dtypeguard", row(cast))


class Regressor(nn.Module):
    """A model with annotations that is not enforced: `guard` reads the annotations."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Float[Tensor, "batch 3"]) -> Float[Tensor, "batch 1"]:
        return self.layer(x)


def e2_integers_from_a_loader() -> None:
    """Integers are cast to a wider dtype if every value survives. A cast to floats must be allowed with `casting=`."""
    torch.manual_seed(0)
    counts = torch.from_numpy(np.array([[1, 2, 3], [4, 5, 6]], dtype=np.int32))
    model = Regressor()
    say("PyTorch", failure(RuntimeError, model, counts))

    dtypeguard.guard(model, mode="lenient")
    say("dtypeguard", failure(dtypeguard.CastError, model, counts))
    dtypeguard.guard(model, mode="lenient", casting="promote")
    with lenient() as said:
        output = model(counts)
    assert torch.equal(output, model(counts.float()))
    say("dtypeguard", f"casting='promote': {said[0]}")

    @dtypeguard.enforce
    def looked_up(ids: Int64[Tensor, "n"], table: Float[Tensor, "rows d"]) -> Float[Tensor, "n d"]:
        return F.embedding(ids, table)

    ids = torch.from_numpy(np.array([0, 2], dtype=np.int16))
    table = torch.randn(3, 4)
    say("PyTorch", failure(RuntimeError, F.embedding, ids, table))
    with lenient() as said:
        rows = looked_up(ids, table)
    assert torch.equal(rows, table[[0, 2]])
    say("dtypeguard", f"by default: {said[0]}")

    with dtypeguard.audit():
        ids = torch.from_numpy(np.array([0, 2], dtype=np.int16))
        with dtypeguard.mode("strict"):
            error = raised(dtypeguard.DtypeError, looked_up, ids, table)
    (born,) = error.origin
    assert "torch.from_numpy(" in born
    say("dtypeguard", f"strict: {str(error).splitlines()[0]}; origin: {born}")


def e3_half_model_under_a_scaler() -> None:
    """float16 parameters with a GradScaler are reported at once, not after the first backward."""
    torch.manual_seed(0)
    model = Regressor().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(4, 3)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    say("PyTorch", failure(ValueError, step))
    say(
        "dtypeguard",
        failure(dtypeguard.AmpError, lambda: dtypeguard.amp.watch(model, optimizer, scaler, mode="strict")),
    )

    model = Regressor()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    with dtypeguard.amp.watch(model, optimizer, scaler, mode="strict") as watch:
        step()
    assert watch.report() == []
    say("dtypeguard", "float32 parameters under autocast: nothing to say")


ROWS: dict[str, Callable[[], None]] = {
    "A1": a1_cast_inside_a_loss,
    "A2": a2_discarded_cast,
    "A3": a3_fails_in_backward,
    "B1": b1_integers_times_floats,
    "B2": b2_assert_in_a_routine,
    "B3": b3_numpy_and_back,
    "B4": b4_lineage,
    "C1": c1_other_device,
    "C2": c2_integers_made_floats_inside,
    "C3": c3_in_place_on_a_cast_copy,
    "D1": d1_one_cast_at_the_boundary,
    "D2": d2_gradients_in_their_own_dtype,
    "D3": d3_float32_kernel,
    "E1": e1_integers_and_floats,
    "E2": e2_integers_from_a_loader,
    "E3": e3_half_model_under_a_scaler,
}


def main() -> None:
    for row in sys.argv[1:] or ROWS:
        example = ROWS[row]
        print(f"{row}  {(example.__doc__ or '').splitlines()[0]}")
        example()
        print()


if __name__ == "__main__":
    main()
