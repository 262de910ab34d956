"""DG601 to DG604: what is loaded, and the default dtype."""

import contextlib
import gc
import threading
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


def fails(dtype, reset=None):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    if reset is None:
        raise OSError("shard 3 is missing")
    nn.Linear(2, 2)
    torch.set_default_dtype(reset if reset else before)


def set_back_by_the_caller():
    try:
        with contextlib.suppress(OSError):
            fails(BF16)
    finally:
        torch.set_default_dtype(F32)
    torch.zeros(3)


def tried_again():
    with contextlib.suppress(OSError):
        fails(BF16)
    fails(BF16, F32)
    torch.zeros(3)


def in_another_thread():
    """Not on this thread's stack, and not over."""
    begun, over = threading.Event(), threading.Event()

    def work():
        before = torch.get_default_dtype()
        torch.set_default_dtype(F64)
        begun.set()
        over.wait()
        torch.set_default_dtype(before)

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    torch.zeros(3)
    over.set()
    thread.join()


def between_two_values_of_a_generator():
    def tables():
        before = torch.get_default_dtype()
        torch.set_default_dtype(F64)
        for _ in range(2):
            yield torch.eye(2)
        torch.set_default_dtype(before)

    for _ in tables():
        torch.zeros(3)


def chosen_by_one_of_two_branches():
    """The other one does not set it back."""

    def main(double):
        if double:
            torch.set_default_dtype(torch.float64)
        else:
            torch.set_default_dtype(torch.float32)
        raise OSError

    with contextlib.suppress(OSError):
        main(True)
    torch.zeros(3)


def left_by_a_return():
    def choose(double):
        before = torch.get_default_dtype()
        torch.set_default_dtype(F64)
        if double:
            return
        torch.set_default_dtype(before)

    choose(True)
    torch.zeros(3)


def adam(dtype=BF16):
    weight = nn.Parameter(torch.ones(4, dtype=dtype))
    return weight, torch.optim.Adam([weight])


def saved(optimizer, value=0.1234567):
    state = {0: {"step": torch.tensor(5.0), "exp_avg": torch.full((4,), value)}}
    return {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}


def state_is_put_back():
    weight, optimizer = adam()
    state = saved(optimizer)
    optimizer.load_state_dict(state)
    optimizer.myself = optimizer  # collected later, with all that it has
    optimizer.state[weight].update(state["state"][0])
    del optimizer
    gc.collect()


def state_is_loaded_again():
    _, optimizer = adam()
    optimizer.load_state_dict(saved(optimizer))
    optimizer.load_state_dict(saved(optimizer, 0.5))


HEALTHY = [
    set_back_by_the_caller,
    tried_again,
    in_another_thread,
    between_two_values_of_a_generator,
    chosen_by_one_of_two_branches,
    left_by_a_return,
    state_is_put_back,
    state_is_loaded_again,
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


def test_a_load_that_is_tried_again_keeps_the_leaked_default():
    def program():
        with contextlib.suppress(OSError):
            fails(BF16)
        fails(BF16, False)  # what it sets back is what the first one left
        return torch.zeros(3)

    assert [finding.rule for finding in bad(run(program))] == ["DG602"]


def test_what_a_failed_function_had_is_freed_after_the_audit():
    refs = []

    def load():
        before, model = torch.get_default_dtype(), nn.Linear(2, 2)
        refs.append(weakref.ref(model))
        torch.set_default_dtype(F64)
        open("nowhere")  # noqa: SIM115
        torch.set_default_dtype(before)

    with audit(), contextlib.suppress(OSError):
        load()
    gc.collect()
    assert refs[0]() is None


def test_what_a_function_had_that_set_its_default_back_is_freed_at_once():
    refs = []

    def load():
        before, model = torch.get_default_dtype(), nn.Linear(2, 2)
        refs.append(weakref.ref(model))
        torch.set_default_dtype(F64)
        made = torch.ones(3)
        torch.set_default_dtype(before)
        return made

    with audit():
        made = load()
        gc.collect()
        assert refs[0]() is None
    assert made.dtype is F64


@pytest.mark.parametrize("cycle", [False, True])
def test_narrowed_state_is_found_when_its_optimizer_is_gone(cycle):
    with audit() as report:
        _, optimizer = adam()
        optimizer.load_state_dict(saved(optimizer))
        optimizer.myself = optimizer if cycle else None
        del optimizer
        gc.collect()
    assert [finding.rule for finding in bad(report)] == ["DG604"]


def test_narrowed_state_is_found_though_it_is_replaced_after_a_step():
    weight = nn.Parameter(torch.ones(4, dtype=BF16))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    rows = [{"state": {0: {"momentum_buffer": torch.full((4,), value)}}} for value in (0.1234567, 0.5)]
    with audit() as report:
        for row in rows:
            optimizer.load_state_dict({**row, "param_groups": optimizer.state_dict()["param_groups"]})
            weight.grad = torch.ones_like(weight)
            optimizer.step()
    (finding,) = bad(report)
    assert finding.message.endswith("0.1234567 is 0.1235352 now")


def test_state_in_containers_and_in_float64():
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    state = {0: {"factors": [{"row": torch.full((4,), 0.1, dtype=F64)}], "names": ["a"], "none": None}}
    with audit() as report:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    (finding,) = [finding for finding in report.findings if finding.rule == "DG604"]
    assert finding.severity == "info"
    assert "factors[0]['row'] of parameter 0" in finding.message
    assert finding.message.endswith("0.1 is 0.1000000015 now")


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


def test_a_number_of_steps_that_was_saved_in_half_precision():
    """It stands still from there on: 260 and 1 are 260 in bfloat16."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(261):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    saved = optimizer.state_dict()
    for state in saved["state"].values():
        state.update({key: value.bfloat16() for key, value in state.items()})
    with audit(select="DG604") as report:
        optimizer.load_state_dict(saved)
    (finding,) = report.findings
    assert finding.message == (
        "`AdamW.load_state_dict` takes `step of parameter 0`, `step of parameter 1` in bfloat16, as saved, which "
        "counts to 256 and no further: it is 260"
    )
    assert optimizer.state[model.bias]["step"].item() == 260
