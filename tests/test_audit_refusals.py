"""DG110 and its neighbours in an audit: what PyTorch refuses, and what is no matter of dtypes."""

import contextlib
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from audit_cases import Cases, audited, bad, it_is_found, nothing_is_found
from support import BF16, F16, F32, F64
from torch import nn

import dtypeguard

BUGS, HEALTHY = Cases(), Cases()
I16, I32, I64 = torch.int16, torch.int32, torch.int64


@pytest.mark.parametrize("case", BUGS, ids=str)
def test_what_torch_refuses_is_found_at_its_line(case):
    it_is_found(case)


@pytest.mark.parametrize("case", HEALTHY, ids=str)
def test_what_is_no_matter_of_dtypes_gives_no_finding(case):
    nothing_is_found(case)


# ---------------------------------------------------------------- floats of two kinds


@BUGS.add(
    "DG110",
    "return x @ weight",
    severity="error",
    message=(
        "`x @ weight` was refused: expected m1 and m2 to have the same dtype, but got: float != c10::Half; "
        "`operand 1` = f16[3,2] on cpu (torch.randn(3, 2).half() at test_audit_refusals.py, "
        "in matrices_of_two_dtypes: float16)"
    ),
)
def matrices_of_two_dtypes():
    weight = torch.randn(3, 2).half()
    x = torch.randn(2, 3)
    return x @ weight


@BUGS.add(
    "DG110", "return net(rows)", severity="error", from_dtype=F32, to_dtype=F64, origin=["torch.rand(2, 4)"],
    fix="`.to(torch.float64)`",
)  # fmt: skip
def float32_rows_reach_a_model_that_is_float64_on_purpose():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    rows = torch.rand(2, 4)
    return net(rows)


@BUGS.add(
    "DG101", "return net(torch.rand(2, 4))", severity="error", from_dtype=F64, to_dtype=F32,
)  # fmt: skip
def one_layer_s_weights_come_from_numpy():
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1))
    net[2].weight = nn.Parameter(torch.from_numpy(np.ones((1, 8))))
    return net(torch.rand(2, 4))


@BUGS.add(
    "DG110", "return net(torch.randn(1, 3, 8, 8))", severity="error", module_path="Sequential.1", from_dtype=F16,
    to_dtype=F32, origin=["net[1].half()", "weight: float16"], fix="`.to(torch.float32)`, or cast what it gets",
)  # fmt: skip
def one_convolution_of_a_model_is_half():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3), nn.ReLU())
    net[1].half()
    return net(torch.randn(1, 3, 8, 8))


@BUGS.add(
    "DG110", "return net(torch.randn(1, 3, 8, 8).half())", severity="error", module_path="Sequential.2",
    from_dtype=F32, to_dtype=F16, origin=["Sequential.1."], fix="`.to(torch.float16)`",
)  # fmt: skip
def the_norm_of_a_half_model_is_kept_in_float32():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3)).half()
    net[1].float()
    net[0].register_forward_hook(lambda module, args, y: y.float())
    return net(torch.randn(1, 3, 8, 8).half())


@BUGS.add(
    "DG110", "return torch.einsum('bij,bjd->bid', scores, v)", severity="error", from_dtype=F32, to_dtype=BF16,
    origin=["torch.linspace(-1, 1, 4)"], fix="`.to(torch.bfloat16)`", also=("DG102",),
)  # fmt: skip
def two_results_of_a_bfloat16_model_meet():
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.qk, self.v = nn.Linear(4, 8), nn.Linear(4, 4)

        def forward(self, x):
            table = torch.linspace(-1, 1, 4)
            v = self.v(x)
            q, k = (self.qk(x).unflatten(-1, (2, 4)) * table).unbind(-2)
            scores = torch.einsum("bid,bjd->bij", q, k)
            return torch.einsum('bij,bjd->bid', scores, v)  # fmt: skip

    return Rotary().bfloat16()(torch.randn(1, 3, 4).bfloat16())


@BUGS.add("DG101", "return torch.lerp(a, b, 0.5)", severity="error", from_dtype=F64, to_dtype=F32)
def an_interpolation_of_two_dtypes():
    a, b = torch.zeros(3), torch.ones(3, dtype=F64)
    return torch.lerp(a, b, 0.5)


# ---------------------------------------------------------------- integers


@pytest.mark.parametrize(
    ("program", "right"),
    [
        (lambda: F.embedding(torch.tensor([1.0]), torch.randn(3, 2)), "`.long()`"),
        (lambda: nn.Embedding(3, 2)(torch.tensor([1.0])), "`.long()`"),
        (lambda: torch.index_select(torch.randn(3), 0, torch.tensor([0.0])), "`.long()`"),
        (lambda: torch.randn(3)[torch.tensor([0.0])], "`.long()`"),
        (lambda: F.cross_entropy(torch.randn(2, 3), torch.tensor([0, 1], dtype=I32)), "`.long()`"),
        (lambda: F.nll_loss(torch.randn(2, 3), torch.tensor([0.0, 1.0])), "`.long()`"),
        (lambda: F.binary_cross_entropy(torch.rand(2), torch.tensor([0, 1])), "`.to(torch.float32)`"),
        (lambda: nn.Linear(2, 2)(torch.ones(1, 2, dtype=I64)), ("`.float()`", "`.to(torch.float32)`")),
        (lambda: nn.Linear(2, 2).half()(torch.ones(1, 2, dtype=I64)), "`.to(torch.float16)`"),
        (lambda: torch.where(torch.tensor([1, 0]), torch.ones(2), torch.zeros(2)), "`.bool()`"),
        (lambda: torch.arange(4).mean(), "`.float()`"),
        (lambda: 1 - torch.tensor([True]), "`~mask`"),
        (lambda: torch.arange(4).add_(0.5), "`x = x + y` in place of `x += y`"),
        (lambda: torch.arange(4).sqrt_(), "`x = x.sqrt(...)`"),
        (lambda: torch.arange(4).clamp_(0, torch.tensor(2.5)), "`.long()` on the bounds"),
        (
            lambda: F.binary_cross_entropy_with_logits(torch.rand(2), torch.tensor([0, 1])),
            "`.to(torch.float32)` on the",
        ),
        (lambda: torch.arange(3).masked_fill(torch.tensor([1.0, 0, 0]), 0), "`.bool()`"),
        (lambda: torch.fft.rfft(torch.randn(4).bfloat16()), "`.float()` first"),
        (lambda: ~torch.ones(2), "`.bool()` first for a mask"),
        (lambda: torch.lerp(torch.zeros(2), torch.zeros(2).half(), 0.5), "`.to(torch."),
        (lambda: torch.randn(2).bfloat16().numpy(), "`.float()`"),
    ],
)
def test_the_fix_names_what_to_write(program, right):
    (finding,) = bad(audited(program))
    assert finding.rule == "DG110"
    assert any(one in finding.fix for one in ([right] if isinstance(right, str) else right))


# ---------------------------------------------------------------- no finding


@HEALTHY.add()
def a_configuration_lacks_its_dtype():
    x = torch.ones(2) + 1
    return {"size": x}["dtype"]


@HEALTHY.add()
def an_object_has_no_dtype():
    x = [torch.ones(2) + 1]
    return x.dtype


@HEALTHY.add()
def a_function_takes_no_dtype():
    def load(x):
        return x

    return load(torch.ones(2) + 1, dtype=F16)


@HEALTHY.add()
def numpy_knows_no_such_dtype():
    x = torch.ones(2) + 1
    return x.numpy().astype(np.dtype("bfloat"))


@HEALTHY.add()
def an_assertion_fails():
    x = torch.ones(2, dtype=F64) + 1
    assert x.dtype is F32, "the dtype must be float32"


@HEALTHY.add()
def a_file_is_missing():
    x = torch.ones(2) + 1
    return torch.load("/nowhere/float16/dtype.pt"), x


@HEALTHY.add()
def a_refusal_within_a_module_is_handled():
    class Fallback(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            try:
                return self.fc(x)
            except RuntimeError:
                return self.fc(x.float())

    return Fallback()(torch.ones(1, 4).half())


@HEALTHY.add()
def a_refused_operation_is_handled():
    a, b = torch.ones(2, 2), torch.ones(2, 2).half()
    try:
        return a @ b
    except RuntimeError:
        return a @ b.float()


@HEALTHY.add()
def an_interrupted_program():
    x = torch.ones(2) + 1
    raise StopIteration(x.dtype)


# ---------------------------------------------------------------- how it leaves


def test_the_exception_goes_through_unchanged():
    def program():
        return torch.ones(2, 2) @ torch.ones(2, 2).half()

    with pytest.raises(RuntimeError, match="same dtype") as alone:
        program()
    with pytest.raises(RuntimeError, match="same dtype") as watched, dtypeguard.audit() as report:
        program()
    assert (type(watched.value), str(watched.value)) == (type(alone.value), str(alone.value))
    assert report.error == f"RuntimeError: {alone.value}"
    assert [f.rule for f in bad(report)] == ["DG110"]


def test_a_refusal_is_said_once_on_its_way_through_modules():
    report = audited(lambda: nn.Sequential(nn.Sequential(nn.Linear(2, 2)))(torch.ones(1, 2).half()))
    (finding,) = bad(report)
    assert (finding.rule, finding.count, finding.module_path) == ("DG110", 1, "Sequential.0.0")


@pytest.mark.parametrize(("caught", "severity"), [(False, "error"), (True, "info")])
def test_refusals_in_threads_are_found(caught, severity, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)

    def work():
        with contextlib.suppress(RuntimeError if caught else ZeroDivisionError):
            nn.Linear(2, 2)(torch.ones(1, 2).half())

    def program():
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return torch.ones(2) + 1

    found = [f for f in audited(program).findings if f.rule == "DG110"]
    assert {f.severity for f in found} == {severity}
    assert {f.source for f in found} == {"nn.Linear(2, 2)(torch.ones(1, 2).half())"}


class Translating(nn.Module):
    """Says what was wrong in its own words."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        try:
            return self.fc(x)
        except RuntimeError as error:
            raise ValueError("block 3 cannot take this") from error


def test_a_refusal_is_found_behind_the_exception_that_took_its_place():
    (finding,) = bad(audited(lambda: Translating()(torch.ones(1, 2).half())))
    assert (finding.rule, finding.source) == ("DG110", "return self.fc(x)")


def test_a_refusal_is_found_where_it_is_raised_again():
    def program():
        try:
            return nn.Linear(2, 2)(torch.ones(1, 2).half())
        except RuntimeError:
            torch.ones(2).sum()
            raise

    (finding,) = bad(audited(program))
    assert (finding.rule, finding.count) == ("DG110", 1)


CAUGHT = {
    "an operation": lambda: torch.ones(2, 2) @ torch.ones(2, 2).half(),
    "a function": lambda: F.conv1d(torch.ones(1, 2, 2).double(), torch.ones(2, 2, 1)),
    "a write in place": lambda: torch.ones(2, 2).addmm_(torch.ones(2, 2), torch.ones(2, 2).half()),
    "a backward": lambda: Halving.apply(torch.ones(2, 2, requires_grad=True)).sum().backward(),
    "a layer": lambda: nn.Linear(2, 2)(torch.ones(1, 2).half()),
}


class Halving(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ torch.ones(2, 2).half()


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("refused", CAUGHT.values(), ids=CAUGHT)
def test_a_refusal_that_the_program_catches_is_an_info(refused, times):
    def program():
        for _ in range(times):
            try:
                refused()
            except RuntimeError:
                torch.ones(2).sum()

    found = [(f.severity, f.count) for f in audited(program).findings if f.rule in ("DG101", "DG110")]
    assert found == [("info", times)]


@pytest.mark.parametrize("refused", CAUGHT.values(), ids=CAUGHT)
def test_a_refusal_that_ends_the_program_is_the_error_that_it_was_first_an_info(refused):
    def program():
        try:
            refused()
        except RuntimeError:
            torch.ones(2).sum()
            raise

    (finding,) = [f for f in audited(program).findings if f.rule in ("DG101", "DG110")]
    assert (finding.severity, finding.count) == ("error", 1)


class Falls(nn.Module):
    """Tries one product, and takes another one where the first is refused."""

    def __init__(self, then):
        super().__init__()
        self.layer, self.then = nn.Linear(3, 3), then

    def forward(self, x):
        try:
            return self.layer(x)
        except RuntimeError as error:
            return self.then(self, x, error)


def again(model, x, error):
    return model.layer(x.float())


def after_another_layer(model, x, error):
    model.layer(torch.ones(1, 3))
    raise error


def as_another_error(model, x, error):
    raise ValueError("not this one") from error


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize(
    ("then", "severity"), [(again, "info"), (after_another_layer, "error"), (as_another_error, "error")]
)
def test_a_refusal_that_a_model_catches_in_its_own_forward_is_an_info(then, severity, depth):
    """Once for all calls; and the error that it always was where the model raises it after all."""
    model = Falls(then)
    for _ in range(depth):
        model = nn.Sequential(model)

    def program():
        for _ in range(2):
            model(torch.ones(2, 3).half())

    found = [f for f in audited(program).findings if f.rule in ("DG101", "DG110")]
    assert [(f.severity, f.count) for f in found] == [(severity, 2 if severity == "info" else 1)]
    assert "return self.layer(x)" in found[0].spots[0].source
