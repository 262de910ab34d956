"""Where a dtype comes from: the lines from the birth of a tensor to where it is now."""

import pickle
import threading

import numpy as np
import pytest
import torch
from jaxtyping import Float, Float32
from support import F16, F32, F64
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import dtypeguard
from dtypeguard import DtypeError, audit, enforce, guard


def line_of(function, text):
    """The number of the line of a function that holds a text."""
    import inspect

    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line and "def " not in line)


def assert_chain(lines, function, *steps):
    """Each step: text of the program on that line, dtype."""
    assert len(lines) == len(steps), lines
    for line, (text, dtype) in zip(lines, steps, strict=True):
        assert text in line, lines
        assert f":{line_of(function, text)}, in {function.__name__}: {dtype}" in line, lines


# ---------------------------------------------------------------- births


BIRTHS = {
    "torch.from_numpy(np.zeros(3))": lambda: torch.from_numpy(np.zeros(3)),
    "torch.tensor(np.zeros(3))": lambda: torch.tensor(np.zeros(3)),
    "torch.tensor([1.0, 2.0], dtype=F64)": lambda: torch.tensor([1.0, 2.0], dtype=F64),
    "torch.as_tensor(np.zeros(3))": lambda: torch.as_tensor(np.zeros(3)),
    "torch.asarray(np.zeros(3))": lambda: torch.asarray(np.zeros(3)),
    "torch.from_dlpack(np.zeros(3))": lambda: torch.from_dlpack(np.zeros(3)),
    "torch.frombuffer(bytearray(16), dtype=F64)": lambda: torch.frombuffer(bytearray(16), dtype=F64),
    "torch.ones(3, dtype=F64)": lambda: torch.ones(3, dtype=F64),
    "torch.rand(3, dtype=F64)": lambda: torch.rand(3, dtype=F64),
    "torch.DoubleTensor([1.0, 2.0])": lambda: torch.DoubleTensor([1.0, 2.0]),
    "torch.zeros(3).new_tensor([1.0], dtype=F64)": lambda: torch.zeros(3).new_tensor([1.0], dtype=F64),
    "torch.empty_like(torch.zeros(3), dtype=F64)": lambda: torch.empty_like(torch.zeros(3), dtype=F64),
    "torch.zeros(4).view(F64)": lambda: torch.zeros(4).view(F64),
}


@pytest.mark.parametrize(("text", "program"), BIRTHS.items(), ids=BIRTHS)
def test_the_line_of_a_birth_is_known(text, program):
    with audit() as report:
        x = program()
    line = report.origin(x)[-1]
    assert text in line
    assert line.endswith(f":{program.__code__.co_firstlineno}, in <lambda>: float64")
    assert report.faults == []


# A tensor made before the audit, or past torch's dispatcher, is known from where it is seen first.


def test_a_tensor_from_before_the_audit_is_known_from_where_it_was_seen():
    x = torch.zeros(3, dtype=F64)
    with audit() as report:
        y = x + 1
    (line,) = set(report.origin(x))
    assert "float64" in line
    assert report.origin(y)[-1].startswith("y = x + 1") or "x + 1" in report.origin(y)[-1]


def test_a_tensor_that_was_never_seen_has_no_origin():
    with audit() as report:
        pass
    assert report.origin(torch.zeros(3)) == ()
    with pytest.raises(TypeError, match="origin: 3 is no tensor"):
        report.origin(3)


def test_a_new_tensor_at_an_old_address_has_no_others_origin():
    with audit() as report:
        x = torch.ones(3, dtype=F64)
        del x
        old = [torch.zeros(2).half() for _ in range(100)]
        del old
    assert [report.origin(torch.zeros(3)) for _ in range(100)] == [()] * 100


# ---------------------------------------------------------------- chains


def load_and_scale():
    x = torch.from_numpy(np.full((2, 3), 255.0))
    y = x / 255
    return y


def through_views():
    x = torch.from_numpy(np.ones((4, 3)))
    y = x.t()[0:2].reshape(8)[None].expand(2, 8).contiguous().unsqueeze(0).squeeze(0)
    return y


def through_an_update_in_place():
    x = torch.from_numpy(np.ones(3))
    x.mul_(2)
    x[0] = 3
    x += 1
    return x


def through_a_cast():
    x = torch.from_numpy(np.ones(3))
    y = x.float()
    z = y.to(torch.float64)
    return z


class Labelled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


def through_a_subclass():
    x = torch.from_numpy(np.ones(3)).as_subclass(Labelled)
    y = x.float()
    z = y.to(torch.float64)
    return z


CHAINS = [
    (load_and_scale, ("torch.from_numpy(", "float64"), ("x / 255", "float64")),
    (through_views, ("torch.from_numpy(", "float64")),
    (through_an_update_in_place, ("torch.from_numpy(", "float64")),
    (through_a_cast, ("torch.from_numpy(", "float64"), ("x.float()", "float32"), ("y.to(torch.float64)", "float64")),
    (through_a_subclass, ("torch.from_numpy(", "float64"), ("x.float()", "float32"), ("y.to(", "float64")),
]


@pytest.mark.parametrize(("program", "steps"), [(c[0], c[1:]) for c in CHAINS], ids=[c[0].__name__ for c in CHAINS])
def test_a_chain_goes_from_birth_to_now(program, steps):
    with audit() as report:
        x = program()
    lines = report.origin(x)
    if program is through_views:  # the copies that views need are lines of their own
        lines = lines[:1]
    assert_chain(lines, program, *steps)
    assert report.faults == []


def test_a_chain_through_modules_names_the_lines_of_the_program():
    class Scale(nn.Module):
        def forward(self, x):
            return x.double() * 2

    net = nn.Sequential(nn.Linear(3, 3), Scale())
    with audit() as report:
        y = net(torch.ones(2, 3))
    lines = report.origin(y)
    assert "x.double()" in lines[-1]
    assert lines[-1].endswith("in forward: float64")
    assert all("site-packages" not in line and "torch/nn" not in line for line in lines)


def test_a_chain_is_cut_where_it_is_long():
    with audit() as report:
        x = torch.from_numpy(np.ones(3))
        x = x + 1
        x = x + 2
        x = x + 3
        x = x + 4
        x = x + 5
        x = x + 6
        x = x + 7
        x = x + 8
        x = x + 9
    lines = report.origin(x)
    assert len(lines) < 10
    assert lines[0].startswith("torch.from_numpy")
    assert any(line.startswith("... ") and "more lines" in line for line in lines)
    assert "x = x + 9" in lines[-1] or "x + 9" in lines[-1]


def test_one_line_alone_is_not_left_out():
    with audit() as report:
        x = torch.ones(3)
        x = x + 1
        x = x.double()
        x = x + 3
        x = x + 4
        x = x + 5
        x = x + 6
    assert len(report.origin(x)) == 7


def test_a_statement_over_several_lines_is_one_line():
    with audit() as report:
        x = torch.zeros(
            3,
            dtype=torch.float64,
        )
    (line,) = report.origin(x)
    assert "\n" not in line
    assert "torch.zeros(" in line


def test_gradients_and_updated_parameters_have_the_parameters_dtype():
    net = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with audit(net) as report:
        net(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    assert report.origin(net.weight)[-1] == "parameter Linear.weight: float32"
    assert report.origin(net.weight.grad) == () or "float32" in report.origin(net.weight.grad)[-1]
    assert report.faults == []


def test_a_converted_parameter_says_its_new_dtype():
    net = nn.Linear(3, 3)
    with audit(net) as report:
        net(torch.ones(2, 3))
        net.double()
        y = net(torch.ones(2, 3, dtype=F64))
    assert "float64" in report.origin(net.weight)[-1]
    assert "float64" in report.origin(y)[-1]


def test_a_tensor_that_got_other_data_says_the_dtype_that_it_has():
    with audit() as report:
        x = torch.ones(3)
        x.data = x.data.double()
        y = x * 2
    assert x.dtype is F64
    assert all("float64" in lines[-1] for lines in (report.origin(y), report.origin(x)) if lines)


def test_a_parameter_of_ones_own_begins_where_it_is_made_or_seen_first():
    with audit() as report:
        weight = nn.Parameter(torch.zeros(3, dtype=F64))
        y = weight * 2
    assert all("float64" in line and "test_audit_origin.py" in line for line in report.origin(y))
    assert len(report.origin(y)) >= 1


class Images(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.from_numpy(np.full(3, float(index)))


def test_a_loader_in_process_hands_the_line_of_the_data_set_on():
    with audit() as report:
        (batch,) = DataLoader(Images(), batch_size=4)
    lines = report.origin(batch)
    assert "torch.from_numpy(np.full(3, float(index)))" in lines[0]
    assert f":{line_of(Images.__getitem__, 'from_numpy')}, in __getitem__: float64" in lines[0]


def test_a_loop_is_told_by_its_header():
    def run():
        for x in DataLoader(Images(), batch_size=4):
            y = x * 2
            del y
        return x

    with audit() as report:
        x = run()
    assert not any("y = x" in line for line in report.origin(x))
    assert report.origin(x)[-1].startswith("for x in DataLoader(Images(), batch_size=4) at ")


def test_the_code_of_a_statement_beside_others_is_that_alone():
    with audit() as report:
        w = torch.tensor([1, 2, 3]); w[0] = 0.5  # fmt: skip  # noqa: E702
    (spot,) = report.findings[0].spots[:1]
    assert spot.source[spot.begin : spot.end] == "w[0] = 0.5"


def test_a_chain_goes_through_threads():
    made = []

    def work():
        made.append(torch.from_numpy(np.ones(3)))

    with audit() as report:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        y = made[0] * 2
    assert_chain(report.origin(y)[:1], work, ("torch.from_numpy(", "float64"))
    assert len(report.origin(y)) == 2


# ---------------------------------------------------------------- errors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    @enforce
    def forward(self, x: Float[Tensor, "batch 3"]):
        return self.fc(x)


@enforce
def loss(pred: Float32[Tensor, "n"], target: Float32[Tensor, "n"]):
    return (pred - target).square().mean()


def feed_a_network(net):
    images = torch.from_numpy(np.full((4, 3), 255.0))
    x = images / 255
    return net(x)


def feed_a_loss(_):
    pred = torch.ones(4)
    target = torch.ones(4).half()
    return loss(pred, target)


def guarded():
    return guard(nn.Sequential(nn.Linear(3, 2)))


FED = [
    (feed_a_network, Net, "float64", ("torch.from_numpy(", "images / 255")),
    (feed_a_network, guarded, "float64", ("torch.from_numpy(", "images / 255")),
    (feed_a_loss, lambda: None, "float16", ("torch.ones(4).half()",)),
]


@pytest.mark.parametrize(("program", "make", "dtype", "texts"), FED, ids=["enforce", "guard", "function"])
def test_an_error_inside_an_audit_says_where_the_dtype_was_born(strict, program, make, dtype, texts):
    net = make()
    with pytest.raises(DtypeError) as caught, audit() as report:
        program(net)
    error = caught.value
    lines = [line for line in error.origin if line.rpartition(": ")[2] == dtype]
    assert_chain(lines, program, *((text, dtype) for text in texts))
    rows = str(error).split("\n")
    first = next(number for number, row in enumerate(rows) if row.startswith("  origin     "))
    shown = [rows[first].removeprefix("  origin     ")]
    shown += [row.strip() for row in rows[first + 1 : first + len(error.origin)]]
    assert tuple(shown) == error.origin
    assert report.error == f"DtypeError: {rows[0]}"
    assert report.faults == []


@pytest.mark.parametrize(("program", "make", "dtype", "texts"), FED, ids=["enforce", "guard", "function"])
def test_an_error_outside_of_an_audit_has_no_origin(strict, program, make, dtype, texts):
    with audit():
        torch.ones(3).double()
    with pytest.raises(DtypeError) as caught:
        program(make())
    assert caught.value.origin == ()
    assert "\n  origin " not in str(caught.value)


def test_an_error_pickles_with_its_origin(strict):
    with pytest.raises(DtypeError) as caught, audit():
        feed_a_network(Net())
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.origin == caught.value.origin != ()
    assert str(again) == str(caught.value)


def test_nested_audits_answer_from_the_inner_one_and_the_outer_one_after_it(strict):
    net = Net()
    with audit():
        early = torch.from_numpy(np.ones((4, 3)))
        with audit(), pytest.raises(DtypeError) as inner:
            net(torch.ones(4, 3, dtype=F64))
        with pytest.raises(DtypeError) as outer:
            net(early)
    with pytest.raises(DtypeError) as outside:
        net(early)
    assert "torch.ones(4, 3, dtype=F64)" in inner.value.origin[0]
    assert "torch.from_numpy(np.ones((4, 3)))" in outer.value.origin[0]
    assert outside.value.origin == ()


def test_audits_that_overlap_in_threads_leave_no_origin_behind(strict):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with audit():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with audit():
        pass
    thread.start()
    inside.wait(10)
    with audit():
        leave.set()
        thread.join()
    with pytest.raises(DtypeError) as caught:
        feed_a_network(Net())
    assert caught.value.origin == ()


def test_a_check_of_one_value_says_its_origin(strict):
    with audit(), pytest.raises(DtypeError) as caught:
        dtypeguard.check(torch.from_numpy(np.ones(3)), Float32[Tensor, "n"])
    assert "torch.from_numpy(np.ones(3))" in caught.value.origin[0]


def test_the_first_offender_of_several_gives_the_origin(strict):
    with audit(), pytest.raises(DtypeError) as caught:
        loss(torch.ones(3, dtype=F64), torch.ones(3, dtype=F16))
    assert caught.value.argument == "pred"
    assert "torch.ones(3, dtype=F64)" in caught.value.origin[-1]


def test_a_repair_in_an_audit_is_a_repair_as_before():
    with audit() as report, pytest.warns(dtypeguard.CastWarning):
        y = Net()(torch.from_numpy(np.ones((4, 3))))
    assert y.dtype is F32
    assert [(r.from_dtype, r.to_dtype) for r in dtypeguard.casts()] == [(F64, F32)]
    assert report.faults == []


def test_findings_carry_the_chain_too():
    with audit() as report:
        table = torch.from_numpy(np.ones(3))
        y = torch.ones(3) * table
    (finding,) = report.findings
    assert finding.rule == "DG101"
    assert finding.origin == report.origin(table)
    assert y.dtype is F64
