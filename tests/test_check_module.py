"""`check_module`: a faithful model passes, a broken one by the property it breaks, nothing else changes."""

import copy
import functools
import json
import os
import random
import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from jaxtyping import Float, Float32, Int
from support import BF16, F16, F32, F64
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

import dtypeguard
from dtypeguard import AnnotationError, guard, is_guarded
from dtypeguard._tools.calls import Inputs
from dtypeguard.testing import Cell, CheckError, ModuleReport, check_module
from dtypeguard.testing._properties import PROPERTIES, argument_named
from dtypeguard.testing._trial import Bench, Trial

GOLDEN = Path(__file__).parent / "golden"


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


X = numbers(4, 3)


class Linear(nn.Module):
    """A faithful model, and what the broken ones derive from."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x)


def with_forward(forward):
    return type("Model", (Linear,), {"forward": forward})


# ---------------------------------------------------------------- what passes


class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, batch, *rest, scale, **named):
        first, (second, ids) = batch["first"], batch["rest"]
        return {"out": self.layer(first + second) * scale, "ids": ids, "rest": [*rest, *named.values()]}


class Enforced(Linear):
    @dtypeguard.enforce(mode="strict")
    def forward(self, x: Float[Tensor, "b 3"], times: Float32[Tensor, ""]) -> Float[Tensor, "b 3"]:
        return self.layer(x) * times


class Stateful(Linear):
    """What it computes depends on the calls before; copies must not share that."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.cache = []

    def forward(self, x):
        self.cache.append(x)
        self.seen += x.detach().mean(0)
        return self.layer(torch.cat(self.cache)) + self.seen


class CastsBefore(Linear):
    def __call__(self, x):
        return super().__call__(x.to(self.layer.weight.dtype))


def passing(function):
    @functools.wraps(function)
    def call(self, *args, **kwargs):
        return function(self, *args, **kwargs)

    return call


class Decorated(nn.Embedding):
    """As the models of transformers are."""

    def __init__(self):
        super().__init__(5, 3)

    @passing
    def forward(self, ids):
        return super().forward(ids)


FAITHFUL = {
    "a class": (Linear, X),
    "a model": (Linear(), X),
    "a guarded model": (lambda: guard(Linear(), mode="lenient", casting="unsafe"), X),
    "an enforced model": (Enforced, (X, torch.tensor(2.0))),
    "a callable": (Linear, lambda: {"x": numbers(4, 3)}),
    "containers": (
        Containers,
        lambda: {
            "batch": {"first": numbers(2, 3), "rest": (numbers(2, 3), torch.arange(2))},
            "scale": numbers(1),
            "extra": numbers(2),
        },
    ),
    "packed sequences": (lambda: nn.GRU(3, 3), lambda: (nn.utils.rnn.pack_sequence([numbers(3, 3), numbers(2, 3)]),)),
    "dropout": (lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), X),
    "layers that are skipped at random": (  # other numbers come under another default dtype
        with_forward(lambda self, x: {n: self.layer(x) for n in range(8) if torch.rand([]) > 0.5}),
        X,
    ),
    "batch statistics": (lambda: nn.BatchNorm1d(3), X),
    "a memory": (Stateful, X),
    "a model that casts its input": (with_forward(lambda self, x: self.layer(x.to(self.layer.weight.dtype))), X),
    "a model that casts before forward": (CastsBefore, X),
    "no floating input": (lambda: nn.Embedding(5, 3), torch.arange(4)),
    "a decorator that takes all arguments": (Decorated, torch.arange(4)),
    "a mask beside ids": (
        with_forward(
            lambda self, ids, mask: self.layer(torch.eye(3)[ids].to(self.layer.weight)).masked_fill(mask == 0, 0)
        ),
        lambda: {"ids": torch.arange(3), "mask": numbers(3, 1).round()},
    ),
    "an input that asks for its gradient": (Linear, numbers(4, 3).requires_grad_()),
    "a complex parameter": (lambda: Complex(), X),
    "a model that cannot be copied": (lambda: prune.l1_unstructured(nn.Linear(3, 2), "weight", 2), X),
    "one tensor twice": (lambda: nn.Bilinear(3, 3, 2), (X, X)),
}


class Complex(Linear):
    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    def forward(self, x):
        return self.layer(x) * self.phase.abs().to(x.dtype)


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", FAITHFUL)
def test_a_faithful_model_passes(name):
    factory, example = FAITHFUL[name]
    report = check_module(factory, batch=example)
    assert report.failures == []
    assert {cell.status for cell in report.cells} <= {"same", "cast", "trap", "unsupported"}
    assert any(cell.status == "same" for cell in report.cells)


def test_a_linear_layer_s_matrix_is_what_the_documentation_says():
    report = check_module(lambda: nn.Linear(3, 2), batch=X)
    assert len(report.cells) == 48
    for cell in report.cells:
        by_autocast = cell.region and F64 not in (cell.parameter_dtype, cell.input_dtype)
        same = cell.parameter_dtype is cell.input_dtype or by_autocast
        assert cell.status == ("same" if same else "cast"), cell
        assert (cell.bare is None) is bool(same), cell


def test_a_trap_is_what_pytorch_computes_in_silence():
    report = check_module(lambda: nn.LayerNorm(3), batch=X, region=(None,))
    assert [(c.parameter_dtype, c.input_dtype, c.outputs, c.guard) for c in report.traps] == [
        (F32, F16, (F16,), "accepts"),
        (F32, BF16, (BF16,), "accepts"),
    ]
    report = check_module(lambda: nn.RMSNorm(3), batch=X, region=(None,))
    assert {(c.parameter_dtype, c.input_dtype) for c in report.traps} == {
        (p, i) for p in (F16, BF16, F32, F64) for i in (F16, BF16, F32, F64) if p is not i
    }
    assert {c.guard for c in report.traps if c.parameter_dtype is not F32} == {"repairs"}


def test_a_finite_value_that_would_become_infinite_is_refused_and_that_is_right():
    report = check_module(Linear, batch=torch.full((2, 3), 1e30), dtype=(F32, F16), region=(None,))
    statuses = {(c.parameter_dtype, c.input_dtype): c.status for c in report.cells}
    assert statuses == {(F32, F32): "same", (F32, F16): "cast", (F16, F32): "refused", (F16, F16): "same"}


def test_a_guard_s_own_options_are_kept():
    class Two(Linear):
        def forward(self, x, mask):
            return self.layer(x) + mask.to(x.dtype)

    skipped = check_module(lambda: guard(Two(), skip_args=["mask"]), batch=(X, X), region=(None,))
    assert skipped.failures == []
    careful = check_module(lambda: guard(Linear(), casting="safe"), batch=X, dtype=(F32, F64), region=(None,))
    assert [cell.status for cell in careful.cells] == ["same", "refused", "cast", "same"]


def test_a_model_of_several_dtypes_is_also_tried_as_it_is():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(3, 3).bfloat16(), nn.Linear(3, 2)

        def forward(self, x):
            return self.head(self.body(x).to(self.head.weight.dtype))

    report = check_module(Mixed, batch=X.bfloat16(), region=(None,))
    as_given = {cell.input_dtype: cell.status for cell in report.cells if cell.parameter_dtype is None}
    assert as_given == {BF16: "same", F32: "cast", F64: "cast", F16: "cast"}


# ---------------------------------------------------------------- what is caught, and by which property


class BornInside(Linear):
    def forward(self, x):
        return self.layer(x) + torch.zeros(3)


class PlainAttribute(Linear):
    def __init__(self):
        super().__init__()
        self.scale = torch.ones(3)

    def forward(self, x):
        return self.layer(x) * self.scale


class Widens(Linear):
    def forward(self, x):
        return self.layer(x.float())


class SeesItBefore(Linear):
    """A hook keeps what the guard has not repaired yet."""

    def __init__(self):
        super().__init__()
        self.register_forward_pre_hook(type(self).remember)

    def remember(self, args):
        self.seen = args[0]

    def forward(self, x):
        return self.layer(self.seen)


class SwapsItsArguments(nn.Bilinear):
    def __init__(self):
        super().__init__(3, 3, 2)

    def __call__(self, input1, input2):
        return super().__call__(input2, input1)


class LooksAtItsClassWhenCompiled(Linear):
    def forward(self, x):
        guarded = type(self) is not LooksAtItsClassWhenCompiled
        return self.layer(x) * (2 if guarded and torch.compiler.is_compiling() else 1)


class KeepsNumbersElsewhere(Linear):
    def __init__(self):
        super().__init__()
        self.noise = random.random()

    def forward(self, x):
        return self.layer(x) + self.noise


class Assigns(Linear):
    def _load_from_state_dict(self, state, prefix, *rest):
        self.layer.weight = nn.Parameter(state[f"{prefix}layer.weight"])


class PromisesFloat32(Linear):
    def forward(self, x) -> Float32[Tensor, "b 3"]:
        return self.layer(x)


class FillsIn(Linear):
    def __call__(self, x):
        return super().__call__(torch.zeros(4, 3) if x.is_meta else x)


class PadsWhatItWidened(Linear):
    """The dtype is older than the line that was last at it."""

    def forward(self, x):
        wide = F.pad(F.pad(x.float(), (1, 1)), (-1, -1))
        for _ in range(6):
            wide = F.relu(wide)
        return wide * self.layer(x)


class DetectorLoss(Linear):
    """As FCOS has it: boxes in float32 at the least, logits as they are."""

    def forward(self, x):
        y = self.layer(x)
        boxes = y if y.dtype in (F32, F64) else y.float()
        return {"boxes": (1 - boxes).abs().sum() / 3, "logits": F.binary_cross_entropy_with_logits(y, x.sigmoid())}


Overflows = with_forward(lambda self, x: (self.layer(x) * 3e4).square().sqrt())
Branches = with_forward(lambda self, x: self.layer(x).float() if x.dtype is F16 else self.layer(x))
DefaultDtype = with_forward(lambda self, x: self.layer(x).to(torch.get_default_dtype()))
WritesToItsInput = with_forward(lambda self, x: self.layer(x.add_(1)))
Random = with_forward(lambda self, x: self.layer(x) * os.urandom(1)[0])
LooksAtItsClass = with_forward(lambda self, x: self.layer(x) * (2 if is_guarded(self) else 1))
DetachesUnderAGuard = with_forward(lambda self, x: self.layer(x.detach() if is_guarded(self) else x))
LooksInAutocast = with_forward(
    lambda self, x: self.layer(x) * (2 if is_guarded(self) and torch.is_autocast_enabled("cpu") else 1)
)
FromNumpy = with_forward(lambda self, x: self.layer(x) * torch.from_numpy(np.ones(1)))
BROKEN = {
    FromNumpy: ("output dtype is stable", F32, "`result` is float64 where parameters and input are float32"),
    BornInside: ("output dtype is stable", F16, "`result` is float32 where parameters and input are float16"),
    Widens: ("one dtype", F64, "in float64 the model does not compute: it brings float32 of its own"),
    Overflows: ("half", F16, "in float16 values come out that are wrong: DG901, at"),
    Branches: ("output dtype is stable", F16, "`result` is float32 where parameters and input are float16"),
    DefaultDtype: ("default dtype", F32, "what comes out depends on torch.get_default_dtype()"),
    WritesToItsInput: ("inputs are left alone", F32, "forward writes to `x`, so a repaired call"),
    SeesItBefore: ("lenient repairs", F32, "lenient mode does not repair `x`"),
    SwapsItsArguments: ("strict names the argument", F32, "strict mode does not name `input1`"),
    Random: ("repeatable", F32, "two calls with the same weights, inputs and seed give different results"),
    LooksAtItsClass: ("matched", F32, "a call with nothing to repair is not the same under a guard in strict mode"),
    PromisesFloat32: ("matched", F64, "a call with nothing to repair is not the same under a guard in strict mode"),
    DetachesUnderAGuard: ("gradients", F32, "gradients are not those of the bare model"),
    LooksInAutocast: ("autocast", F32, "a call with nothing to repair is not the same under a guard"),
    LooksAtItsClassWhenCompiled: ("compile", F32, "torch.compile(backend='eager', fullgraph=True)"),
    KeepsNumbersElsewhere: ("state", F32, "the model is another after load_state_dict into a new model"),
    Assigns: ("state", F32, "loading a float64 state changes the dtype of `layer.weight`"),
    FillsIn: ("meta", F32, "strict mode does not name `x`, which is on meta and has no data"),
}


def test_every_property_is_broken_by_some_model():
    assert {name for name, _, _ in BROKEN.values()} == {row.name for row in PROPERTIES}


@pytest.mark.parametrize(
    "model", [pytest.param(m, marks=[pytest.mark.slow] * (m is LooksAtItsClassWhenCompiled)) for m in BROKEN]
)
def test_a_broken_model_is_caught_by_the_property_that_it_breaks(model):
    name, dtype, message = BROKEN[model]
    example = (X, -X) if model is SwapsItsArguments else X
    options = {"compile": "eager", "dtype": (F32,), "region": (None,)} if name == "compile" else {}
    with pytest.raises(CheckError) as caught:
        check_module(model, batch=example, **options)
    failure = caught.value.report.failures[0]
    assert (failure.property, failure.cell.parameter_dtype) == (name, dtype)
    assert failure.message.startswith(message)
    assert failure.cell.status == "FAILED"
    assert str(caught.value).startswith(f"{model.__name__}: {message}")
    assert failure.fix
    assert failure.got != failure.expected


def test_one_changed_argument_is_shown_of_several():
    class Second(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x, y: Float[Tensor, "..."], ids):
            y *= 2
            return self.layer(x) + y

    with pytest.raises(CheckError) as caught:
        check_module(Second, batch=(X, X.clone(), torch.arange(3)), dtype=(F32, F64), region=(None,))
    assert caught.value.report.failures[0].input == "y = f64[4,3] on cpu"


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (lambda model, **options: model, "lenient repairs"),
        (lambda model, **options: guard(model, **options | {"mode": "strict"}), "lenient repairs"),
        (lambda model, **options: guard(model, **options | {"mode": "lenient"}), "strict names the argument"),
        (lambda model, **options: guard(model, **options | {"dtype": F64}), "matched"),
    ],
    ids="nothing strict lenient float64".split(),
)
def test_a_broken_guard_is_caught(broken, name, monkeypatch):
    monkeypatch.setattr("dtypeguard.testing._trial.guard", broken)
    with pytest.raises(CheckError) as caught:
        check_module(Linear, batch=X, dtype=(F32, F64), region=(None,))
    assert caught.value.report.failures[0].property == name


def test_an_input_on_another_device_is_wrong_and_named():
    bench = Bench(Linear, None)
    cell = Cell(F32, F32, None, torch.device("cpu"), torch.device("meta"))
    trial = Trial(bench, cell, Inputs(bench.signature, (X,), {}))
    assert list(trial.differs) == list(trial.wrong) == ["x"]
    assert list(argument_named(trial)) == []
    assert isinstance(trial.strict.error, dtypeguard.DeviceError)
    number = Trial(bench, replace(cell, input_device=cell.parameter_device), Inputs(bench.signature, (X,), {}))
    assert number.matched


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_every_pair_of_devices_is_tried():
    report = check_module(Linear, batch=X, dtype=(F32, BF16))
    assert len(list(report.tables())) == 4
    for cell in report.cells:
        right = cell.parameter_dtype is cell.input_dtype or cell.region is not None
        assert cell.status == ("same" if right and cell.parameter_device == cell.input_device else "cast"), cell


# ---------------------------------------------------------------- annotations


class Annotated(Linear):
    def forward(self, x: Float[Tensor, "batch 3"], scale: Float32[Tensor, "batch"], ids: Int[Tensor, "batch"]):
        return self.layer(x) * scale[:, None].to(x.dtype), ids


class AnnotatedAndBroken(Linear):
    def forward(self, x: Float[Tensor, "batch 3"], y: Float[Tensor, "n 3"]):
        total = y.sum(0)
        return self.layer(x) + (total * torch.ones(3) if len(x) > 3 else total)


def test_inputs_come_from_annotations():
    report = check_module(Annotated, dtype=(F32, BF16), region=(None, BF16), max_examples=10)
    assert report.failures == []
    assert [cell.inputs for cell in report.cells] == [10, 10, 2, 2] * 2
    assert [cell.status for cell in report.cells] == ["same", "cast", "same", "same", "cast", "same", "same", "same"]


def test_a_failure_comes_with_the_smallest_input():
    with pytest.raises(CheckError) as caught:
        check_module(AnnotatedAndBroken, dtype=(F32, BF16), region=(None,))
    failure = caught.value.report.failures[0]
    assert (failure.property, failure.cell.parameter_dtype) == ("output dtype is stable", BF16)
    assert failure.input == "x = bf16[4,3] on cpu, y = bf16[1,3] on cpu"


def test_axes_and_elements_shape_what_is_drawn():
    seen = set()

    class Looks(Linear):
        def forward(self, x: Float[Tensor, "batch 3"]):
            seen.update({x.shape[0], *x.detach().double().flatten().tolist()})
            return self.layer(x)

    check_module(Looks, dtype=(F32,), region=(None,), axes={"batch": 2}, elements=st.sampled_from([0.5, 1.0]))
    assert seen <= {2, 0.5, 1.0}
    assert 2 in seen


# ---------------------------------------------------------------- nothing else changes


def test_nothing_of_the_caller_s_changes():
    class Careless(Linear):
        """Writes to its input, sets the default dtype, draws numbers of all kinds, and is repaired inside."""

        def forward(self, x):
            torch.set_default_dtype(F32)
            random.random(), np.random.rand(), torch.rand(1)
            dtypeguard.check(torch.ones(1, dtype=F64), Float32[Tensor, "1"])
            return self.layer(x.add_(1) - 1)

    model, example = Careless(), X.clone().requires_grad_(False)
    weights = copy.deepcopy(model.state_dict())
    with pytest.warns(dtypeguard.CastWarning):
        guard(nn.Linear(3, 1))(torch.ones(1, 3, dtype=F64))
    dtypeguard.set_mode("warn")
    torch.set_default_dtype(F64)
    warnings.simplefilter("error")

    def look():
        states = random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()
        settings = torch.get_default_dtype(), dtypeguard.get_mode(), dtypeguard.casts(), list(warnings.filters)
        return states, settings, model.training, is_guarded(model), type(model), example._version

    try:
        before = look()
        with pytest.raises(CheckError):
            check_module(model, batch=example)
        assert look() == before
    finally:
        torch.set_default_dtype(F32)
    assert torch.equal(example, X)
    assert all(torch.equal(model.state_dict()[name], weights[name]) for name in weights)
    assert all(parameter.grad is None for parameter in model.parameters())


# ---------------------------------------------------------------- bad arguments


class Impossible(Linear):
    def forward(self, x: Float[Tensor, "n 3"], y: Float[Tensor, "n-n-1"]):
        return self.layer(x)


BAD = {
    "a factory that is no callable": ({"factory": 3}, TypeError, "factory=3 is not callable: pass the model's class"),
    "a class that needs arguments": (
        {"factory": nn.Linear},
        TypeError,
        "factory: Linear() does not work (missing a required argument: 'in_features'): pass lambda: Linear(...)",
    ),
    "a factory of something else": ({"factory": dict}, TypeError, "factory: it gives a dict, not an nn.Module: let it"),
    "a lazy model": ({"factory": lambda: nn.LazyLinear(3)}, TypeError, "call the model once, then guard it"),
    "a model that cannot be copied": (
        {"factory": prune.l1_unstructured(nn.Linear(3, 2), "weight", 2)},
        TypeError,
        "factory: this Linear cannot be copied (Only Tensors created explicitly by the user",
    ),
    "an example of another kind": (
        {"batch": [X]},
        TypeError,
        "check_module: `batch` is a list: pass a tensor",
    ),
    "too many arguments": (
        {"batch": (X, X)},
        TypeError,
        "check_module: Linear.forward(x) does not take this batch: too",
    ),
    "an example of another shape": (
        {"batch": torch.ones(2, 5)},
        ValueError,
        "mat1 and mat2 shapes cannot be multiplied (2x5 and 3x3), so it cannot compute the batch",
    ),
    "no annotation": ({"batch": None}, AnnotationError, "argument `x` has no annotation and no default, so no value"),
    "an annotation that nothing keeps": (
        {"factory": Impossible, "batch": None},
        AnnotationError,
        "no sizes of its axes were found that fit each other; or give check_module a batch=",
    ),
    "no dtypes": ({"dtype": 32}, TypeError, "dtype takes a dtype such as torch.bfloat16, or several, not 32 (int)"),
    "an integer dtype": (
        {"dtype": (torch.int64,)},
        ValueError,
        "dtype=int64 is none of bfloat16, float16, float32, float64",
    ),
    "no dtype": ({"dtype": ()}, ValueError, "dtype is empty: name at least one of bfloat16"),
    "a device that is none": ({"device": ("gpu",)}, ValueError, "device='gpu' is no device (did you mean 'cuda'?)"),
    "no devices": ({"device": 0}, TypeError, "device takes a device such as 'cpu', or several, not 0 (int)"),
    "meta": ({"device": ("meta",)}, ValueError, "device: nothing is computed on meta"),
    "no such backend": ({"compile": "fast"}, ValueError, "compile='fast' is neither a bool nor a backend: "),
    "no examples": ({"batch": None, "max_examples": 0}, ValueError, "max_examples=0: draw at least one input"),
    "axes of an example": (
        {"axes": {"b": 2}},
        ValueError,
        "axes and elements shape drawn inputs: leave them out where there is a batch",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_argument_is_named_with_what_to_write(name):
    options, kind, message = BAD[name]
    given = {"factory": Linear, "batch": X} | options
    factory = given.pop("factory")
    with pytest.raises(kind, match=re.escape(message)):
        check_module(factory, **given)


# ---------------------------------------------------------------- the report


def report_of(module, *rows):
    """A report made by hand: parameters, input, autocast, status, what bare PyTorch says, what it gives."""
    cpu = torch.device("cpu")
    cells = []
    for dtype, given, region, status, said, outputs in rows:
        trap = status == "trap"
        ideal = said if status == "unsupported" else None
        guards = "accepts" if status == "same" else "repairs"
        cells.append(Cell(dtype, given, region, cpu, cpu, status, said, outputs, ideal, guards, trap, 1))
    return ModuleReport(module, cells)


NASTY = 'RuntimeError: <script>"& \x07'
REPORT = report_of(
    "Net<'&'>",
    (F32, F32, None, "same", None, (F32,)),
    (F32, F16, None, "trap", None, (F16,)),
    (F32, F32, BF16, "same", None, (BF16,)),
    (F32, F16, BF16, "same", None, (BF16,)),
    (F16, F32, None, "cast", NASTY, ()),
    (F16, F16, None, "unsupported", NASTY, ()),
    (F16, F32, BF16, "refused", None, ()),
    (F16, F16, BF16, "same", None, (BF16,)),
)


def test_a_report_prints_as_a_matrix_of_words():
    assert str(REPORT) + "\n" == (GOLDEN / "check_module.txt").read_text()
    assert max(map(len, str(REPORT).splitlines())) <= 80
    assert repr(REPORT) == "<module report: Net<'&'>: 8 cells, 1 trap, 0 failures, 1 unsupported>"


def test_a_failure_prints_property_cell_input_and_what_to_look_at():
    with pytest.raises(CheckError) as caught:
        check_module(BornInside, batch=X, dtype=(F32, BF16), region=(None,))
    text = re.sub(r"py:\d+", "py:<line>", str(caught.value))
    assert text + "\n" == (GOLDEN / "check_module_failure.txt").read_text()


@pytest.mark.parametrize(("model", "source"), [(BornInside, "torch.zeros(3)"), (PlainAttribute, "self.scale"),
                                               (Widens, "x.float()"), (PadsWhatItWidened, "x.float()")])  # fmt: skip
def test_the_line_is_named_at_which_the_other_dtype_is_born(model, source):
    with pytest.raises(CheckError) as caught:
        check_module(model, batch=X, dtype=(F32, F16), region=(None,))
    failures = caught.value.report.failures
    assert {failure.property for failure in failures} <= {"output dtype is stable", "one dtype", "default dtype"}
    for failure in failures:
        assert source in failure.fix
        assert f"{Path(__file__).name}:" in failure.fix


def test_the_line_is_named_too_where_an_annotated_result_is_refused_or_cast():
    class Promised(BornInside):
        def forward(self, x: Float[Tensor, "batch 3"]) -> Float[Tensor, "..."]:
            return super().forward(x)

    with pytest.raises(CheckError) as caught:
        check_module(Promised, batch=X, dtype=(F32, F16), region=(None,))
    failures = caught.value.report.failures
    assert {"matched", "lenient repairs", "gradients", "state"} < {failure.property for failure in failures}
    for failure in failures:
        assert "torch.zeros(3)" in failure.fix


def test_the_line_is_named_too_where_a_contract_inside_refuses_what_is_born_before_it():
    class Gate(Linear):
        @dtypeguard.enforce
        def forward(self, x: Float[Tensor, "batch 3"]) -> Float[Tensor, "batch 3"]:
            return self.layer(x)

    class Before(Gate):
        def forward(self, x):
            return super().forward(x + torch.zeros(3))

    with pytest.raises(CheckError) as caught:
        check_module(Before, batch=X, dtype=(F32, F16), region=(None,))
    failures = caught.value.report.failures
    assert {failure.property for failure in failures} == {"one dtype", "default dtype"}  # a guard has no part in it
    assert "torch.zeros(3)" in failures[0].fix


def test_a_loss_that_is_float32_at_the_least_is_stable():
    assert check_module(DetectorLoss, batch=X, region=(None,)).failures == []


def test_what_pytorch_has_no_kernel_for_is_unsupported_and_fails_nothing():
    class Inverts(Linear):
        def forward(self, x):
            return torch.linalg.inv(x)

    report = check_module(Inverts, batch=torch.eye(3), region=(None,))
    matched = {cell.input_dtype: cell.status for cell in report.cells if cell.parameter_dtype is cell.input_dtype}
    assert matched == {F32: "same", F64: "same", F16: "unsupported", BF16: "unsupported"}


def test_the_documentation_lists_every_property():
    page = (Path(__file__).parents[1] / "docs" / "testing.md").read_text()
    rows = page.partition("| what is tested |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [row.name for row in PROPERTIES]


def test_a_report_goes_to_json(tmp_path):
    data = json.loads(REPORT.to_json(tmp_path / "report.json"))
    assert data == json.loads((tmp_path / "report.json").read_text()) == REPORT.to_dict()
    assert list(data) == ["schema", "tool", "version", "kind", "torch", "module", "cells", "failures"]
    assert data["cells"][1] == {
        "parameter_dtype": "float32", "input_dtype": "float16", "region": None, "parameter_device": "cpu",
        "input_device": "cpu", "status": "trap", "bare": None, "outputs": ["float16"], "ideal": None,
        "guard": "repairs", "trap": True, "inputs": 1,
    }  # fmt: skip
    with pytest.raises(CheckError) as caught:
        check_module(BornInside, batch=X, dtype=(F32, BF16), region=(None,))
    failures = json.loads(caught.value.report.to_json())["failures"]
    assert [failure["property"] for failure in failures] == ["output dtype is stable", "default dtype", "default dtype"]
    assert failures[0]["cell"] == "parameters bfloat16, input bfloat16, no autocast, on cpu"


# ---------------------------------------------------------------- time


def test_the_number_of_threads_stays_as_it_is():
    seen, before = [], torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        check_module(with_forward(lambda self, x: seen.append(torch.get_num_threads()) or self.layer(x)), batch=X)
        assert {*seen, torch.get_num_threads()} == {3}
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("terminal", [True, False])
def test_it_tells_a_terminal_how_far_it_is_after_two_seconds(monkeypatch, capsys, terminal):
    clock = iter(range(100))
    monkeypatch.setattr("dtypeguard._core.base.progress.time.monotonic", lambda: next(clock))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    check_module(Linear, batch=X, dtype=[F32, F64], region=[None])
    told = "".join(f"\r\x1b[Kdtypeguard: check_module(Linear): {n} of 4 cells in {n + 1} s" for n in (2, 3))
    assert capsys.readouterr().err == (f"{told}\r\x1b[K" if terminal else "")


def test_a_log_is_told_every_thirty_seconds(monkeypatch, capsys):
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr("dtypeguard._core.base.progress.time.monotonic", lambda: next(clock))
    check_module(Linear, batch=X, dtype=[F32, F64], region=[None])
    lines = [f"dtypeguard: check_module(Linear): {n} of 4 cells in {20 * (n + 1)} s" for n in (1, 3)]
    assert capsys.readouterr().err.splitlines() == lines
