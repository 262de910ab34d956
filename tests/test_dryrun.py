"""`dryrun`: what each cell says, where, and that nothing of it stays."""

import copy
import gc
import json
import linecache
import random
import re
import sys
import time
import weakref
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from dryrun_cases import compared, tally
from jaxtyping import Float, Int
from support import BF16, F16, F32, F64
from torch import Tensor, nn
from torch.nn import functional as F

import dtypeguard
from dtypeguard import dryrun
from dtypeguard.results import DryrunTable

GOLDEN = Path(__file__).parent / "golden"
LARGE = 4096  # a matrix of that width is not computed


class Net(nn.Module):
    """A table that is made in the default dtype, in the middle."""

    def __init__(self, width=16):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, 3)

    def forward(self, x):
        scaled = self.norm(self.first(x)) * torch.ones(x.shape[-1])
        return self.last(scaled)


def with_forward(forward, width=LARGE):
    model = type("Model", (nn.Module,), {"forward": forward})()
    with torch.device("meta"):
        model.layer = nn.Linear(width, width)
    return model


def meta(*shape):
    return torch.empty(*shape, device="meta")


X = torch.randn(2, 16, generator=torch.Generator().manual_seed(1))


# ---------------------------------------------------------------- what a cell says

CELLS = {
    (F32, F32, None): ("runs", (F32,)),
    (F32, F16, None): ("repaired", (F32,)),
    (F16, F16, None): ("refused", ()),
    (BF16, BF16, BF16): ("runs", (BF16,)),
    (F32, BF16, F16): ("runs", (F16,)),
    (F64, F32, None): ("repaired", (F64,)),
}


@pytest.mark.parametrize("width", [16, LARGE], ids=["computed", "not computed"])
def test_a_cell_has_a_status_and_the_dtypes_that_come_out(width):
    table = dryrun(Net(width), torch.randn(2, width), device="cpu")
    assert len(table) == 48
    assert {key: (table[key].status, table[key].outputs) for key in CELLS} == CELLS


def test_a_refusal_names_the_line_the_operand_and_where_its_dtype_was_born():
    line = Net.forward.__code__.co_firstlineno
    (cell,) = dryrun(Net(), X, device="cpu", dtype=[F16], region=[None])
    assert cell.error.splitlines() == [
        f"tests/test_dryrun.py:{line + 2}, in forward: `self.last(scaled)` was refused: mat1 and mat2 must have the "
        "same dtype, but got Float and Half; `operand 1` = f32[2,16] on cpu (torch.ones(x.shape[-1]) at "
        f"tests/test_dryrun.py:{line + 1}, in forward: float32)",
        f"  self.norm(self.first(x)) * torch.ones(x.shape[-1]) at tests/test_dryrun.py:{line + 1}, in forward: float32",
    ]
    assert cell.finding.rule == "DG110"
    assert cell.finding.line == line + 2


def test_cells_stand_below_the_reason_for_which_they_were_refused():
    text = str(dryrun(nn.Linear(3, 2), torch.ones(1, 3), dtype=[F32, F16, BF16], region=None, device="cpu"))
    text = " ".join(text.split())
    assert re.search(r"6 cells: .* was refused, for example: mat1 and mat2 must have the same dtype, but got ", text)


def test_reasons_that_differ_in_their_dtypes_are_one_with_the_help_of_the_first():
    net = with_forward(lambda self, x: self.layer(x.float()), width=16)
    text = str(dryrun(net, X, dtype=[F16, BF16], region=None, device="cpu"))
    assert text == str(dryrun(net, X, dtype="fp16, bf16", region=None, device="cpu"))
    assert text.count("help: cast the operand whose dtype differs: `.to(torch.float16)`\n") == 1
    assert "`.to(torch.bfloat16)`" not in text


def test_the_help_gives_what_is_made_inside_the_dtype_of_what_it_is_sized_by():
    class Pads(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(3))
            self.head = nn.Linear(3, 3)

        def forward(self, h):
            h = torch.cat([h, torch.zeros(h.shape[0], 3)], 1)[:, :3] * self.scale
            same = h.T @ h
            return self.head(h @ same)

    finding = dryrun(Pads(), torch.ones(2, 3), dtype=BF16, region=None, device="cpu")[BF16, BF16, None].finding
    assert "write `dtype=h.dtype` in `torch.zeros(h.shape[0], 3)` at " in finding.fix
    assert not any("h.T @ h" in line for line in finding.origin), "it is the line of one operand"


def test_a_cell_that_a_guard_does_not_mend_tells_what_is_refused_behind_it():
    cell = dryrun(Net(), X, dtype=[F32, F16], region=None, device="cpu")[F16, F32, None]
    assert cell.status == "refused"
    assert "`self.last(scaled)` was refused" in cell.error  # not the operand that a guard casts
    assert "`torch.ones(x.shape[-1])`" in cell.finding.fix


def test_a_refusal_of_what_is_not_computed_reads_the_same():
    options = {"device": "cpu", "dtype": [F16], "region": [None]}
    small, large = (dryrun(Net(w), torch.randn(2, w), **options).cells[0].error for w in (16, LARGE))
    assert large.replace(str(LARGE), "16") == small


def test_a_repair_names_what_a_guard_would_cast():
    cell = dryrun(nn.Linear(3, 2), torch.ones(1, 3), device="cpu")["bfloat16", "float32", None]
    assert cell.repairs == ("`input` of Linear.forward from float32 to bfloat16",)
    assert "argument `input`: float32" in cell.error


def test_a_repair_is_what_a_guard_does():
    model, table = nn.Linear(3, 2).to(BF16), dryrun(nn.Linear(3, 2), torch.ones(1, 3), device="cpu")
    with pytest.warns(dtypeguard.CastWarning):
        assert dtypeguard.guard(model, mode="lenient")(torch.ones(1, 3)).dtype is table[BF16, F32, None].outputs[0]


def test_what_autocast_computes_each_module_in():
    cell = dryrun(Net(), X, device="cpu")[F32, F32, BF16]
    assert cell.modules == {"Net.first": (BF16,), "Net.norm": (BF16, F32), "Net": (F32,), "Net.last": (BF16,)}


def test_a_cell_prints_what_became_of_it_and_why():
    table = dryrun(nn.Linear(16, 3), X, device="cpu")
    runs, repaired = (str(table[key]) for key in ((F32, F32, None), (F16, F32, None)))
    assert runs == "parameters float32, inputs float32, no autocast: runs, outputs float32"
    first, *why = repaired.splitlines()
    assert first == "parameters float16, inputs float32, no autocast: repaired, outputs float16"
    assert "was refused: " in why[0]
    assert why[-1] == "  a guard casts `input` of Linear.forward from float32 to float16"


def test_where_a_second_dtype_is_born():
    line = Net.forward.__code__.co_firstlineno + 1
    table = dryrun(Net(), X, device="cpu")
    where = f"at tests/test_dryrun.py:{line}, in forward: float32"
    assert table[BF16, BF16, None].births == (
        f"torch.ones(x.shape[-1]) {where}",
        f"self.norm(self.first(x)) * torch.ones(x.shape[-1]) {where}",
    )
    assert table[F32, F32, None].births == ()


def test_outputs_come_in_order_and_of_every_kind():
    model = with_forward(lambda self, x: {"y": self.layer(x), "rest": [x.float(), x.argmax(-1), (x > 0, None, 3)]})
    cell = dryrun(model, meta(2, LARGE), device="cpu")[BF16, BF16, None]
    assert cell.outputs == (BF16, F32, torch.int64, torch.bool)


# ---------------------------------------------------------------- what comes in


class Annotated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Float[Tensor, "b 4"], ids: Int[Tensor, "b"], scale: float = 1.0) -> Float[Tensor, "b 2"]:
        return self.layer(x) * scale + ids[:, None]


def test_without_an_example_it_is_drawn_from_annotations():
    assert dryrun(Annotated(), device="cpu")["float16", "float16", None].status == "runs"


def test_a_model_without_floating_inputs_has_one_column():
    table = dryrun(nn.Embedding(5, 3), torch.arange(4), device="cpu")
    assert len(table) == 12
    assert table["bfloat16", None, None].outputs == (BF16,)
    table.assert_runs("bfloat16")


def test_a_model_without_parameters_has_one_row():
    table = dryrun(nn.Softmax(-1), torch.ones(2, 3), device="cpu")
    assert {cell.parameters for cell in table} == {None}
    assert table[None, "float16", None].outputs == (F16,)


def test_a_model_of_several_dtypes_has_a_row_of_its_own():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).to(BF16))
    table = dryrun(model, torch.ones(1, 3), device="cpu")
    assert table[None, F32, None].repairs == ("`input` of Linear.forward from float32 to bfloat16",)
    assert table[F32, F32, None].status == "runs"


def test_fewer_cells_can_be_asked_for():
    table = dryrun(Net(), X, dtype=[F32, BF16], region=[None], device="cpu")
    assert len(table) == 4


META = {
    "parameters": lambda: Net(LARGE).to("meta"),
    "made on meta": lambda: with_forward(lambda self, x: self.layer(x)),
    "a compiled model": lambda: torch.compile(nn.Linear(LARGE, 3), backend="eager"),
    "a guarded model": lambda: dtypeguard.guard(nn.Linear(LARGE, 3)),
}


@pytest.mark.parametrize("name", META)
def test_models_without_memory_and_wrapped_models(name):
    table = dryrun(META[name](), meta(2, LARGE), device="cpu", region=[None])
    assert table["float32", "float32", None].status == "runs"


def test_a_model_of_any_size_takes_no_memory():
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(2**17, 2**17) for _ in range(8)))  # half a terabyte in float32
    assert dryrun(model, meta(2, 2**17), region=[None], device="cpu")["bfloat16", "bfloat16", None].status == "runs"


def normed(self, x):
    return F.group_norm(x.reshape(8, 64, -1), 8)


def transformed(self, x):
    return torch.fft.irfft(torch.fft.rfft(x))


def convolved(self, x):
    images = x.reshape(2, 64, 128, -1)
    return F.conv2d(images, images[:1, :8, :3, :3].expand(64, 8, 3, 3), groups=8, padding=1)


@pytest.mark.parametrize("forward", [normed, transformed, convolved])
def test_kernels_that_believe_the_sizes_that_they_are_told(forward):
    """With a tensor of size 1 and the true sizes as numbers they would read past its end."""
    table = dryrun(with_forward(forward), meta(2**9, 2**12), device="cpu", dtype=[F32], region=[None])
    assert [cell.status for cell in table] == ["runs"]


def test_a_large_recurrent_layer():
    table = dryrun(nn.LSTM(512, 1024), meta(2, 4, 512), device="cpu", dtype=[F32, F16], region=[None])
    assert [cell.status for cell in table] == ["runs", "repaired", "repaired", "runs"]


# ---------------------------------------------------------------- control flow


def routed(self, x, where):
    """Only the ids decide: a branch in float32 that a half model refuses."""
    return self.layer(x.float() if where.sum().item() > 3 else x)


@pytest.mark.parametrize(("where", "status"), [([0, 1], "runs"), ([3, 4], "refused")])
def test_the_example_s_own_values_decide(where, status):
    table = dryrun(with_forward(routed), (meta(2, LARGE), torch.tensor(where)), device="cpu", region=[None])
    assert table["float16", "float16", None].status == status


def test_a_mask_of_the_example_gives_its_sizes():
    model = with_forward(lambda self, x, mask: self.layer(x[mask]).new_zeros(int(mask.sum()) - 1))
    cell = dryrun(model, (meta(3, LARGE), torch.tensor([True, False, True])), device="cpu", region=[None])[
        F16, F16, None
    ]
    assert cell.outputs == (F16,)


def clamps(self, x):
    y = self.layer(x)
    if y.isinf().any():
        y = y.clamp(-1, 1)
    return y


def widens(self, x):
    y = self.layer(x)
    if y.isinf().any():
        y = y.float()
    return y


def checks(self, x):
    if (x < 0).any():
        raise ValueError("x has negative entries")
    return self.layer(x)


PATHS = {clamps: ("runs", (BF16,)), widens: ("unknown", ()), checks: ("runs", (BF16,))}


@pytest.mark.parametrize("forward", PATHS)
def test_both_paths_of_a_decision_are_run(forward):
    (cell,) = dryrun(with_forward(forward), meta(2, LARGE), device="cpu", dtype=[BF16], region=[None])
    assert (cell.status, cell.outputs) == PATHS[forward]


UNKNOWN = {
    "a number": (lambda self, x: self.layer(x)[: int(x.sum())], "asks for a value that is not computed"),
    "a list": (lambda self, x: self.layer(x[:, x[0].tolist()]), "asks for values that are not computed"),
    "an array": (lambda self, x: self.layer(x.numpy()), "asks for values that are not computed"),
    "sizes": (
        lambda self, x: self.layer(x[x > 0]),
        "the sizes of what aten.index.Tensor gives depend on values that are not computed",
    ),
    "for ever": (lambda self, x: [None for _ in iter(lambda: bool((x > 0).all()), True)], "asks again and again"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_known_is_unknown_with_the_line(name):
    forward, why = UNKNOWN[name]
    (cell,) = dryrun(with_forward(forward), meta(2, LARGE), device="cpu", dtype=[F32], region=[None])
    line = forward.__code__.co_firstlineno
    assert cell.status == "unknown"
    assert re.fullmatch(rf"tests/test_dryrun.py:{line}, in <\w+>: {re.escape(why)}.*", cell.error)


def test_a_decision_that_matters_is_shown():
    (cell,) = dryrun(with_forward(widens), meta(2, LARGE), device="cpu", dtype=[BF16], region=[None])
    line = widens.__code__.co_firstlineno + 2
    text = f"tests/test_dryrun.py:{line}, in widens: `if y.isinf().any():` decides, by a value that is not computed"
    assert cell.error == text


# ---------------------------------------------------------------- nothing stays


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.cache = []
        self.table = torch.ones(4)

    def forward(self, x):
        self.cache.append(x)
        self.table += 1
        torch.rand(3), random.random(), np.random.rand()
        return self.norm(self.layer(x)) * self.table


def test_nothing_of_the_model_changes():
    model, x = Stateful(), torch.ones(2, 4, requires_grad=True)
    before = {name: (id(t), t._version, t.clone()) for name, t in [*model.state_dict(keep_vars=True).items()]}
    generators = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    settings = torch.get_default_dtype(), torch.get_num_threads(), dtypeguard.get_mode(), dtypeguard.casts()
    dryrun(model, x, device="cpu")
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert (id(tensor), tensor._version) == before[name][:2]
        assert torch.equal(tensor, before[name][2])
    assert model.cache == []
    assert model.table.tolist() == [1] * 4
    assert x.grad is None
    assert torch.equal(torch.get_rng_state(), generators[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == generators[1:]
    assert (torch.get_default_dtype(), torch.get_num_threads(), dtypeguard.get_mode(), dtypeguard.casts()) == settings
    assert not {"tolist", "numpy"} & set(vars(Tensor))


@pytest.mark.parametrize("width", [16, LARGE])
def test_nothing_of_the_model_is_kept_alive(width):
    model = Net(width)
    gone = [weakref.ref(thing) for thing in (model, model.first, model.first.weight)]
    table = dryrun(model, torch.randn(2, width), device="cpu")
    del model
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
    assert table["float32", "float32", None].status == "runs"


def test_an_audit_around_it_hears_nothing():
    with dtypeguard.audit() as report:
        dryrun(Net(), X, device="cpu")
    assert report.findings == []
    assert report.casts == []


# ---------------------------------------------------------------- the table


def table_of(**options):
    return dryrun(Net(), X, device="cpu", **options)


def test_the_table_reads(request):
    text = str(table_of()).replace(torch.__version__, "VERSION")
    text = re.sub(r"test_dryrun.py:\d+", "test_dryrun.py:LINE", text)
    assert f"{text}\n" == (GOLDEN / "dryrun.txt").read_text()


def test_the_answer_comes_first_and_float64_last():
    text = str(table_of(region=None))
    answers = dict.fromkeys(["float32", "float64"], "runs") | dict.fromkeys(["float16", "bfloat16"], "refused")
    assert text.startswith("".join(f"Net in {name} on cpu: {status}\n" for name, status in answers.items()))
    assert text.index("but got Half") < text.index("it mixes float64")
    relu = str(dryrun(nn.ReLU(), X, device="cpu", dtype=[F16, F32], region=None))
    assert relu.startswith("ReLU in float16 on cpu: runs\nReLU in float32 on cpu: runs\n\nReLU: 2 cells")


def test_lines_fit_a_terminal_and_where_packages_are_installed_is_left_out(monkeypatch):
    source = "def forward(self, x):\n    return self.layer(x @ torch.ones(x.shape[-1], x.shape[-1]))\n"
    where, names = "/opt/some/where/lib/python3.12/site-packages/lib/net.py", {"torch": torch}
    monkeypatch.setitem(linecache.cache, where, (len(source), None, source.splitlines(keepends=True), where))
    exec(compile(source, where, "exec"), names)
    table = dryrun(with_forward(names["forward"], 16), X, device="cpu")
    assert "lib/net.py:2, in forward: " in str(table)
    with pytest.raises(AssertionError) as info:
        table.assert_runs(F16)
    assert "lib/net.py:2, in forward: " in str(info.value)
    for text in (str(table), str(info.value)):
        assert "site-packages" not in text
    assert max(map(len, str(table).partition("\n\n  runs")[2].splitlines())) <= 80


def test_regions_in_which_modules_do_the_same_are_told_once():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(2)), nn.LayerNorm(4))
    text = str(dryrun(model, torch.ones(1, 4), dtype=F32, device="cpu"))
    assert text.endswith(
        "\n\nmodules under autocast float16 or bfloat16, float32 parameters\n"
        "  float16 / bfloat16           0, 1\n"
        "  float16 / bfloat16, float32  2"
    )


def test_the_first_of_many_modules_are_named():
    model = nn.Sequential(OrderedDict((name, nn.Linear(4, 4)) for name in "abcdefghi"))
    text = str(dryrun(model, torch.ones(1, 4), dtype=F32, region=BF16, device="cpu"))
    assert text.endswith("  bfloat16  a, b, c, d, e, f, ... 3 more")


def test_two_blocks_are_one_row():
    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            pair = {"up": nn.Linear(3, 3), "down": nn.Linear(3, 3)}
            self.blocks = nn.ModuleList([nn.ModuleDict(pair), nn.ModuleDict(copy.deepcopy(pair))])

        def forward(self, x):
            for one in self.blocks:
                x = one["down"](one["up"](x))
            return x

    text = str(dryrun(Blocks(), torch.ones(1, 3), dtype=F32, region=BF16, device="cpu"))
    assert "blocks.*.up, blocks.*.down" in text


def test_assert_runs():
    table = table_of()
    table.assert_runs("float32")
    table.assert_runs(F32, BF16, region="bfloat16")
    with pytest.raises(AssertionError, match=r"Net does not run \(refused\): tests/test_dryrun.py:\d+, in forward"):
        table.assert_runs("bfloat16")
    with pytest.raises(AssertionError, match=r"(?s)repaired.*cast +`x` of Net.forward from float16 to float32"):
        table.assert_runs(F32, F16)


class Placed(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.places = torch.arange(4.0)

    def forward(self, x):
        return super().forward(x + self.places)


def test_a_tensor_that_is_no_buffer_is_named_with_what_mends_it():
    table = dryrun(nn.Sequential(Placed()), torch.rand(2, 4), dtype="bf16", region=None, device="cpu")
    with pytest.raises(AssertionError) as info:
        table.assert_runs("bf16")
    text = str(info.value)
    assert "`operand 1` = f32[2,4] on cpu (attribute `0.places`, no buffer: float32)" in text
    assert '\n  help       make `places` a buffer, which `.to()` reaches: `self.register_buffer("places", ...)`' in text


def test_the_table_as_data(tmp_path):
    table = table_of(dtype=[F32], region=[None])
    assert json.loads(table.to_json(tmp_path / "table.json")) == table.to_dict()
    assert json.loads((tmp_path / "table.json").read_text())["cells"][0]["outputs"] == ["float32"]
    assert repr(table) == f"<dryrun: Net: 1 cell, runs; kernels of cpu, torch {torch.__version__}>"
    assert isinstance(table, DryrunTable)


def test_a_name_is_as_good_as_a_dtype():
    model, x = torch.nn.Linear(3, 3), torch.ones(2, 3)
    asked = {"device": "cpu", "region": [None]}
    named = dtypeguard.dryrun(model, x, dtype=["bfloat16"], **asked)
    assert named.to_dict() == dtypeguard.dryrun(model, x, dtype=[torch.bfloat16], **asked).to_dict()


def test_progress_after_two_seconds_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    clock = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    table_of(region=[None])
    text = capsys.readouterr().err
    assert "dtypeguard: dryrun(Net): 3 of 16 cells in 4 s" in text
    assert text.endswith("\r\x1b[K")


def test_no_progress_where_nobody_looks(monkeypatch, capsys):
    clock = iter(range(1000))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    table_of(region=[None])
    assert capsys.readouterr().err == ""


def test_one_cell_is_told_in_one_word():
    assert str(dryrun(nn.Linear(3, 2), torch.ones(1, 3), dtype="float32", region=None)).startswith(
        "Linear: 1 cell, runs; kernels of "
    )


# ---------------------------------------------------------------- bad input

NEEDED = (
    "dryrun(Net) needs a batch: pass what the model is called with, dryrun(model, x); none can be drawn from "
    "annotations (Net.forward: argument `x` has no annotation"
)
MISSING = (
    "Bilinear.forward(input1: torch.Tensor, input2: torch.Tensor) -> torch.Tensor does not take this batch: missing"
)
NO_CELL = (
    "no cell has float32, float32, float16; there are parameters float32, float64, float16, bfloat16; inputs float32"
)
BAD = {
    "no example": (lambda: dryrun(Net()), TypeError, NEEDED),
    "no shape is annotated": (lambda: dryrun(nn.Linear(3, 2)), TypeError, "Linear) needs a batch: pass what the "),
    "a missing argument": (lambda: dryrun(nn.Bilinear(3, 3, 2), X), TypeError, MISSING),
    "no model": (lambda: dryrun(F.relu, X), TypeError, "dryrun takes an nn.Module, not a function: write a "),
    "no batch": (lambda: dryrun(Net(), 3), TypeError, "dryrun: `batch` is an int: pass a tensor, a tuple of "),
    "a lazy model": (lambda: dryrun(nn.LazyLinear(3), X), TypeError, "parameter weight of LazyLinear has no shape yet"),
    "no dtypes": (lambda: dryrun(Net(), X, dtype=32), TypeError, "dtype takes a dtype such as torch.bfloat16"),
    "no dtype": (lambda: dryrun(Net(), X, dtype=[]), ValueError, "dtype is empty: name at least one of bfloat16, "),
    "an integer": (lambda: dryrun(Net(), X, dtype=[torch.int8]), ValueError, "dtype=int8 is none of bfloat16"),
    "a region": (lambda: dryrun(Net(), X, region=[F64]), ValueError, "region=float64 is none of None, bflo"),
    "meta": (lambda: dryrun(Net(), X, device="meta"), ValueError, "device='meta': there are no kernels on meta"),
    "no such device": (
        lambda: dryrun(Net(), X, device="xla"), ValueError,
        f"device='xla' is not here (PyTorch {torch.__version__} has no kernels for it)",
    ),
    "a key": (lambda: table_of(region=[None])["float32"], TypeError, "table['float32']: write table[parameters, inp"),
    "no such dtype": (lambda: table_of(region=[None])["floot", None, None], ValueError, "'floot' is no dtype"),
    "no such kind of cell": (
        lambda: table_of(region=[None]).assert_runs("int4"), KeyError,
        "no cell has int4: dryrun asks floating dtypes, bfloat16, float16, float32, float64; compare(model, batch, "
        'format="int4") measures what its weights cost',
    ),
    "no such cell": (lambda: table_of(region=[None])[F32, F32, F16], KeyError, NO_CELL),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_bad_input(name):
    call, kind, text = BAD[name]
    with pytest.raises(kind) as info:
        call()
    assert type(info.value) is kind
    assert text in str(info.value)


@pytest.mark.parametrize("width", [16, LARGE])
def test_a_wrong_shape_is_the_model_s_own_error_with_the_cell(width):
    with pytest.raises(RuntimeError, match=r"(shapes|reduction dim)") as info:
        dryrun(Net(width), torch.ones(2, 17), device="cpu")
    assert info.value.__notes__ == [
        "dtypeguard.dryrun: Net does not run on the batch as it is: parameters float32, inputs float32, no autocast"
    ]


def test_what_the_model_raises_itself_comes_out():
    def forward(self, x):
        raise ValueError("never")

    with pytest.raises(ValueError, match="never"):
        dryrun(with_forward(forward), meta(2, LARGE), device="cpu")


# ---------------------------------------------------------------- right as eager


def dtype_dependent(self, x):
    return self.layer(x) if x.dtype is not F64 else self.layer(x).float() @ x.T


def in_place(self, x):
    y = self.layer(x)
    y[:, 1:] = x[:, :-1]
    return y.add_(x).mul_(2)


def mixed(self, x):
    return torch.cat([self.layer(x), torch.zeros(x.shape, dtype=F32)]) + torch.arange(x.shape[-1])


def disabled(self, x):
    with torch.autocast("cpu", enabled=False):
        return self.layer(x) + F.softmax(x, -1)


def attention(self, x):
    q = self.layer(x).reshape(2, 4, 1, -1)
    return F.scaled_dot_product_attention(q, q, x.reshape(2, 4, 1, -1)).transpose(1, 2).reshape(x.shape)


def casts(self, x):
    return F.linear(x.to(self.layer.weight.dtype), self.layer.weight, self.layer.bias.float()).view(-1)


def swallowed(self, x):
    try:
        return self.layer(x)
    except RuntimeError:
        return self.layer(x.to(self.layer.weight.dtype)).float()


def packed(self, x):
    """A region refuses a call inside of a kernel, after another operation."""
    ran = nn.utils.rnn.pack_padded_sequence(x.sin()[..., None], torch.tensor([8, 8]), batch_first=True).data
    return self.layer(ran.view(2, 8))


FORWARDS = [dtype_dependent, in_place, mixed, disabled, attention, casts, swallowed, packed]


@pytest.mark.parametrize("values", [True, False], ids=["computed", "not computed"])
@pytest.mark.parametrize("forward", FORWARDS)
def test_every_cell_is_as_eager(forward, values):
    model = with_forward(forward, 8).to_empty(device="cpu")
    nn.init.zeros_(model.layer.weight), nn.init.zeros_(model.layer.bias)
    assert set(tally(compared(model, (torch.ones(2, 8),), values=values))) == {"agree"}
