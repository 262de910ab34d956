"""DG601 to DG603: what is loaded, and the default dtype."""

import contextlib
import weakref
from collections import OrderedDict

import numpy as np
import pytest
import torch
from audit_cases import Cases, audited, bad, it_is_found
from support import BF16, F16, F32, F64
from torch import nn

from dtypeguard import audit


@pytest.fixture(autouse=True)
def _default():
    yield
    torch.set_default_dtype(torch.float32)


BUGS = Cases()


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")  # torch's own
@pytest.mark.parametrize("case", BUGS, ids=str)
def test_a_bug_is_found_at_its_line(case):
    it_is_found(case)


def run(program):
    report = audited(program)
    report.to_json()
    return report


# ---------------------------------------------------------------- DG601, DG603


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


@BUGS.add(
    "DG601", "nn.Linear(4, 4).load_state_dict(state)", severity="info", module_path="Linear", from_dtype=F64,
    to_dtype=F32,
)  # fmt: skip
def a_float64_file_in_a_float32_model():
    state = nn.Linear(4, 4).double().state_dict()
    nn.Linear(4, 4).load_state_dict(state)


@BUGS.add(
    "DG601", "model.load_state_dict(state, strict=False)", severity="info", module_path="Sequential", from_dtype=F16,
    to_dtype=F32, parameters=("0.weight",),
)  # fmt: skip
def a_file_of_which_a_part_is_half():
    state = net().state_dict()
    state["0.weight"] = state["0.weight"].half()
    model = net()
    model.load_state_dict(state, strict=False)


# ---------------------------------------------------------------- DG602


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)

    def forward(self, charges):
        grid = torch.linspace(0, 1, 3)
        return self.fc(charges[:, None] * grid)


def calculator():
    torch.set_default_dtype(torch.float64)


@BUGS.add(
    "DG602", "torch.set_default_dtype(torch.float64)", severity="error", from_dtype=F32, to_dtype=F64, also=["DG101"]
)
def a_library_leaks_its_default():
    model = Potential()
    calculator()
    model(torch.tensor([1.0, 2.0], dtype=torch.float32))


def a_leak_promotes():
    x = torch.ones(3)
    calculator()
    y = torch.zeros(3)
    return x + y


@BUGS.add(
    "DG602", "torch.set_default_tensor_type(torch.DoubleTensor)", severity="error", from_dtype=F32, to_dtype=F64,
    also=["DG101"],
)  # fmt: skip
def a_leak_by_a_tensor_type():
    x = torch.ones(2, 3)
    torch.set_default_tensor_type(torch.DoubleTensor)
    layer = nn.Linear(3, 3)
    layer(x)


@BUGS.add(
    "DG602", "torch.set_default_dtype(torch.float16)", severity="error", from_dtype=F32, to_dtype=F16, also=["DG110"]
)
def a_leak_of_half():
    x = torch.ones(2, 3)
    torch.set_default_dtype(torch.float16)
    layer = nn.Linear(3, 3)
    layer(x)


def test_of_a_checkpoint_that_is_narrowed_one_tensor_at_a_time_is_copied(monkeypatch):
    """The copies of seven billion parameters would not fit beside them."""
    model = nn.Sequential(*(nn.Linear(8, 8, bias=False, dtype=BF16) for _ in range(20)))
    state = {name: torch.randn(8, 8) for name in model.state_dict()}
    copies, alive = [], []
    convert = torch.Tensor.to

    def to(*args, **kwargs):
        copies.append(weakref.ref(made := convert(*args, **kwargs)))
        alive.append(sum(copy() is not None for copy in copies))
        return made

    monkeypatch.setattr(torch.Tensor, "to", to)
    with audit() as report:
        model.load_state_dict(state)
    assert [finding.rule for finding in report.findings] == ["DG601"]
    assert len(copies) >= len(state)
    assert max(alive) <= 3


def test_a_checkpoint_of_a_large_tensor_is_compared_to_its_end():
    state = {"weight": torch.ones(1500, 1000)}
    state["weight"][-1, -1] = 1e30
    with audit() as report:
        nn.Linear(1000, 1500, bias=False, dtype=F16).load_state_dict(state)
    assert ["`weight` overflow" in finding.message for finding in report.findings] == [True]


# ---------------------------------------------------------------- healthy programs


def assigned_by_position():
    model = net()
    model.load_state_dict(net().half().state_dict(), True, True)
    assert model[0].weight.dtype is F16


def assigned_to_meta():
    with torch.device("meta"):
        model = net()
    model.load_state_dict(net().bfloat16().state_dict(), assign=True)
    assert model[0].weight.dtype is BF16


def flags():
    model = nn.Module()
    model.register_buffer("seen", torch.tensor(False))
    model.load_state_dict({"seen": torch.tensor(1.0)})


def nothing_in_common():
    model = net()
    keys = model.load_state_dict({"other": torch.ones(3, dtype=F64)}, strict=False)
    assert len(keys.missing_keys) == 6
    model.load_state_dict({}, strict=False)
    model.load_state_dict(OrderedDict(), False)


def extra_state():
    class Extra(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def get_extra_state(self):
            return {"version": 1, "table": torch.ones(2, dtype=F64)}

        def set_extra_state(self, state):
            self.version = state["version"]

    Extra().load_state_dict(Extra().state_dict())


@contextlib.contextmanager
def default(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def the_same_default_is_set_again():
    torch.set_default_dtype(torch.float32)
    torch.ones(3) + torch.zeros(3)


def nested_defaults():
    with default(torch.float64):
        with default(torch.float16):
            torch.ones(3)
        torch.ones(3) + torch.ones(3)
    torch.ones(3) + torch.ones(3)


HEALTHY = [
    assigned_by_position,
    assigned_to_meta,
    flags,
    nothing_in_common,
    extra_state,
    the_same_default_is_set_again,
    nested_defaults,
]


@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__)
def test_a_healthy_program_is_not_blamed(program):
    report = run(program)
    assert bad(report) == []
    assert [finding for finding in report.findings if finding.rule.startswith("DG6")] == []


def test_a_default_that_was_changed_before_the_audit_is_the_programs_own():
    torch.set_default_dtype(torch.float64)
    with audit() as report:
        torch.ones(3) + torch.ones(3)
        nn.Linear(3, 3)(torch.ones(2, 3))
    assert report.findings == []


def test_the_leak_names_what_came_of_it():
    report = run(a_leak_promotes)
    finding = next(f for f in report.findings if f.rule == "DG602")
    assert "test_audit_state.py" in finding.message
    assert "in a_leak_promotes" in finding.message
    assert "set_default_dtype(torch.float32)" in finding.fix
    assert finding.function == "calculator"


def test_loading_returns_and_raises_what_it_did():
    model = net()
    with audit() as report:
        keys = model.load_state_dict({"0.weight": torch.ones(4, 4), "odd": torch.ones(1)}, strict=False)
        assert keys.unexpected_keys == ["odd"]
        with pytest.raises(RuntimeError, match="Missing key"):
            model.load_state_dict({})
        with pytest.raises(RuntimeError, match="size mismatch"):
            nn.Linear(2, 2).load_state_dict({"weight": torch.ones(3, 3).half(), "bias": torch.ones(2)})
        with pytest.raises(TypeError, match="Expected state_dict to be dict-like"):
            model.load_state_dict([1, 2])
        with pytest.raises(TypeError):
            model.load_state_dict()
    assert report.faults == []
    assert bad(report) == []


def test_a_state_dict_by_keyword_is_loaded():
    with audit() as report:
        nn.Linear(2, 2).load_state_dict(state_dict=nn.Linear(2, 2).half().state_dict(), strict=True)
    assert [f.rule for f in report.findings] == ["DG601"]
    assert report.faults == []


def test_a_hook_that_casts_the_state_before_it_is_loaded_is_heard():
    class Casts(nn.Linear):
        def _load_from_state_dict(self, state_dict, prefix, *args):
            for key, value in state_dict.items():
                state_dict[key] = value.float()
            super()._load_from_state_dict(state_dict, prefix, *args)

    with audit() as report:
        Casts(2, 2).load_state_dict(nn.Linear(2, 2).half().state_dict())
    assert report.faults == []
    assert bad(report) == []


def test_odd_entries_of_a_state_are_no_trouble():
    states = [
        {"weight": np.ones((2, 2), dtype=np.float64), "bias": torch.zeros(2)},
        {"weight": torch.ones(2, 2, device="meta", dtype=F16), "bias": torch.zeros(2)},
        {"weight": torch.ones(2, 2, dtype=torch.complex64), "bias": torch.zeros(2)},
        {"weight": torch.full((2, 2), float("nan"), dtype=F64), "bias": torch.tensor([float("inf"), 1.0], dtype=F64)},
        {"weight": torch.ones(2, 2).to(torch.float8_e4m3fn), "bias": torch.zeros(2)},
        {"weight": torch.ones(2, 2).to_sparse().double(), "bias": torch.zeros(2)},
        {"weight": nn.Parameter(torch.ones(2, 2).half()), "bias": torch.zeros(2).expand(2)},
        {"weight": "text", "bias": None, 3: 4},
    ]

    def load(state):
        model = nn.Linear(2, 2)
        try:
            model.load_state_dict(state, strict=False)
        except Exception as error:
            return type(error), str(error)
        return [p.dtype for p in model.parameters()], [p.tolist() for p in model.parameters()][1]

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [load(state) for state in states]
        with audit() as report:
            result = [load(state) for state in states]
    assert str(result) == str(expected)
    assert report.faults == []


def test_a_nan_in_a_checkpoint_is_not_taken_for_lost_digits():
    with audit() as report:
        nn.Linear(2, 2).half().load_state_dict({"weight": torch.full((2, 2), float("nan")), "bias": torch.zeros(2)})
    (finding,) = report.findings
    assert (finding.rule, finding.severity) == ("DG601", "info")
    assert "no value is changed" in finding.message


def test_infinity_in_a_checkpoint_is_no_overflow():
    with audit() as report:
        nn.Linear(2, 2).half().load_state_dict({"weight": torch.full((2, 2), float("-inf")), "bias": torch.zeros(2)})
    assert bad(report) == []


def test_a_lazy_model_is_loaded():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.LazyLinear(4))
    with audit() as report:
        model.load_state_dict(nn.Sequential(nn.Linear(3, 4)).half().state_dict())
    assert report.faults == []
