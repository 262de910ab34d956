"""What an audit gives: the report as text, as data, as a page, and as a test."""

import contextlib
import copy
import json
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from support import BF16, F16, F32, F64
from torch import nn

from dtypeguard import audit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x, *, cond=None, scale=1.0):
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return {"out": x, "more": (x.sum(), [x.half()]), "none": None}


def discards(x):
    x.half()


def promotes(x):
    return x * torch.from_numpy(np.ones(3))


def made(*programs):
    x = torch.ones(3)
    with audit() as report:
        for program in programs:
            program(x)
    assert report.faults == []
    return report


# ---------------------------------------------------------------- text


def test_an_empty_report():
    with audit() as report:
        torch.ones(3)
    assert "nothing found" in str(report)
    assert repr(report) == "<audit report: nothing found; no casts>"


@pytest.mark.parametrize(
    ("times", "said"), [(1, "with NameError: odd: a bug"), (3, "3 times, first with NameError: odd: a bug")]
)
def test_a_report_says_that_the_audit_itself_failed(times, said):
    with audit() as report:
        for _ in range(times):
            report._recorder.fault(NameError("odd"))
    assert f"the audit itself failed {said} of dtypeguard; what it" in " ".join(str(report).split())
    assert report.to_dict()["faults"] == ["NameError: odd"] * times


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError("odd")])
def test_a_report_of_a_program_that_was_ended_says_so(error):
    with contextlib.suppress(KeyboardInterrupt, ValueError), audit() as report:
        gap = (torch.rand(4).double() - torch.rand(4)).float()
        gap.sum()
        raise error
    assert report.to_dict()["verdict"].startswith(
        f"No warning until {report.error.partition(':')[0]} ended the program;"
    )


@pytest.mark.parametrize("error", [None, ImportError])
def test_a_report_of_no_operation_says_so(error):
    """ "Nothing found" would say that something was looked at."""
    with contextlib.suppress(ImportError), audit() as report:
        if error is not None:
            raise error
    said = "the program ended before any operation of PyTorch" if error else "no operation of PyTorch was seen"
    assert str(report) == f"{said}\n\naudit report: {said}; no casts"
    assert report.to_dict()["verdict"] == said
    assert f"<b>{said}</b>" in report.to_html()
    assert "casts that are worth a look" not in str(report)
    assert report.findings == []
    assert report.casts == []
    report.assert_clean()


def test_a_report_says_what_where_and_what_to_write():
    report = made(discards, promotes)
    text = " ".join(str(report).split())
    for part in ("DG103", "DG101", "warning", "x.half()", "discards", "promotes", "help:"):
        assert part in text, text
    assert "2 warnings" in text
    assert str(report) == str(report)
    assert not str(report).endswith("\n")
    assert all(line == line.rstrip() for line in str(report).splitlines())


def test_a_report_has_no_codes_of_colours(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    assert "\x1b" not in str(made(discards))


def test_what_looks_like_markup_is_printed_as_it_is():
    with audit() as report:
        table = {"[bold]": torch.ones(3)}
        table["[bold]"].half()
    text = str(report)
    assert "table['[bold]'].half()" in "".join(text.split("\n")).replace('"', "'") or '["[bold]"]' in text.replace(
        "\n", ""
    )


def test_counts_and_plurals():
    x = torch.ones(3)
    with audit() as report:
        x.half()
    assert repr(report) == "<audit report: 1 warning; casts at 1 line>"
    with audit() as report:
        x.half()
        x.bfloat16()
        x.double()
    assert repr(report) == "<audit report: 3 warnings; casts at 3 lines>"
    with audit() as report:
        torch.tensor(np.float64(1))
        torch.tensor([np.float64(1)])
    assert repr(report) == "<audit report: 2 info; no casts>"
    with audit() as report:
        for _ in range(3):
            discards(x)
    (finding,) = report.findings
    assert (finding.count, report.casts[0].count) == (3, 3)
    assert "3 times" in str(report)


def test_long_lists_of_casts_are_cut():
    with audit() as report:
        exec(compile("\n".join(f"y{n} = x.double()" for n in range(50)), "<program>", "exec"), {"x": torch.ones(3)})
    assert len(report.casts) == 50
    assert "... 30 more" in str(report)


def test_the_worst_comes_first():
    with audit() as report:
        torch.tensor(np.float64(1))
        torch.ones(3).half()
        net = nn.BatchNorm1d(2)
        net.load_state_dict({**net.state_dict(), "num_batches_tracked": torch.tensor(0.5)})
    order = [finding.severity for finding in report.findings]
    assert order == sorted(order, key=["error", "warning", "info"].index)
    assert len(set(order)) == 3


def test_a_program_without_source_is_reported():
    with audit() as report:
        exec(compile("x.half()", "<nowhere>", "exec"), {"x": torch.ones(3)})
    assert report.faults == []
    str(report)
    data = report.to_dict()
    assert data["casts"][0]["source"] == ""
    assert data["casts"][0]["file"] == "<nowhere>"


def test_a_report_prints_while_the_audit_runs():
    with audit() as report:
        discards(torch.ones(3))
        operations = report.to_dict()["operations"]
        assert "DG103" in str(report)
        assert json.loads(report.to_json())["findings"]
        assert report.to_dict()["operations"] == operations
    assert report.faults == []


# ---------------------------------------------------------------- casts


def test_casts_are_told_apart_by_kind():
    x = torch.ones(4, 4, requires_grad=True)
    with audit(ignore=["DG101", "DG102"]) as report:
        x.to(torch.float64)
        torch.ones(4) * torch.ones(4, dtype=F64)
        with torch.autocast("cpu", dtype=BF16):
            y = x @ x
        torch.ones(4).to("meta")
        target = torch.zeros(4, dtype=F16)
        target[:] = torch.ones(4)
        y.float().sum().backward()
    kinds = {cast.kind for cast in report.casts}
    assert kinds == {"explicit", "promotion", "autocast", "device", "write", "backward"}
    assert report.faults == []
    by_kind = {kind: [c for c in report.casts if c.kind == kind] for kind in kinds}
    (device,) = by_kind["device"]
    assert (device.from_device, device.to_device, device.from_dtype, device.to_dtype) == ("cpu", "meta", F32, F32)
    (write,) = by_kind["write"]
    assert (write.from_dtype, write.to_dtype, write.bytes) == (F32, F16, 8)
    (promotion,) = by_kind["promotion"]
    assert (promotion.op, promotion.from_dtype, promotion.to_dtype, promotion.bytes) == ("mul", F32, F64, 32)
    assert {(c.from_dtype, c.to_dtype) for c in by_kind["autocast"]} == {(F32, BF16)}


def test_casts_are_sorted_by_bytes():
    with audit() as report:
        small, large = torch.ones(3).half(), torch.ones(1000).double()
        middle = torch.ones(100).bfloat16()
    sizes = [cast.bytes for cast in report.casts]
    assert sizes == sorted(sizes, reverse=True) == [large.nbytes, middle.nbytes, small.nbytes]


def test_a_cast_in_backward_belongs_to_its_line_in_forward():
    class Casts(nn.Module):
        def forward(self, x):
            return x.double()

    x = torch.ones(4, requires_grad=True)
    net = Casts()
    with audit() as report:
        y = net(x)
        y.sum().backward()
    (cast,) = [c for c in report.casts if c.kind == "backward"]
    assert (cast.from_dtype, cast.to_dtype, cast.module_path) == (F64, F32, "Casts")
    row = next(c for c in report.to_dict()["casts"] if c["kind"] == "backward")
    assert row["source"] == "return x.double()"


def test_a_cast_of_autocast_in_backward_belongs_to_the_layer():
    net = nn.Linear(4, 4)
    with audit() as report:
        with torch.autocast("cpu", dtype=BF16):
            y = net(torch.ones(2, 4))
        y.float().sum().backward()
    rows = [c for c in report.to_dict()["casts"] if c["kind"] == "backward"]
    assert rows
    assert {row["source"] for row in rows} <= {"y = net(torch.ones(2, 4))", "y.float().sum().backward()"}
    assert "Linear" in {row["module_path"] for row in rows}


def test_a_conversion_that_changes_nothing_is_no_cast():
    x = torch.ones(3)
    with audit() as report:
        assert x.float() is x
        assert x.to(torch.float32) is x
        x.to(torch.float32, copy=True)
        x.clone()
        nn.Linear(2, 2).float()
    assert report.casts == []


# ---------------------------------------------------------------- modules


def rows(report):
    return {row["path"]: row for row in report.to_dict()["modules"]}


def test_modules_are_listed_parents_first():
    net = Net()
    with audit(net) as report:
        net(torch.ones(2, 4))
    listed = report.to_dict()["modules"]
    paths = [row["path"] for row in listed]
    assert sorted(paths) == sorted(f"Net{'.' if name else ''}{name}" for name, _ in net.named_modules())
    for number, row in enumerate(listed):
        if row["parent"] is not None:
            assert row["parent"] in paths[:number]
            assert row["path"].startswith(row["parent"] + ".")
    assert [row["path"] for row in listed if row["parent"] is None] == ["Net"]
    assert rows(report)["Net"]["calls"] == 1
    assert rows(report)["Net.layers"]["calls"] == 0
    assert rows(report)["Net.layers.1"]["class"] == "Linear"


def test_a_module_row_has_its_own_tensors():
    net = Net().half()
    with audit(net) as report, torch.no_grad():
        net.eval()(torch.ones(2, 4).half())
    norm = rows(report)["Net.norm"]
    assert norm["class"] == "BatchNorm1d"
    assert norm["parameters"] == [
        {"name": "weight", "kind": "parameter", "dtype": "float16", "device": "cpu", "shape": [4], "bytes": 8},
        {"name": "bias", "kind": "parameter", "dtype": "float16", "device": "cpu", "shape": [4], "bytes": 8},
        {"name": "running_mean", "kind": "buffer", "dtype": "float16", "device": "cpu", "shape": [4], "bytes": 8},
        {"name": "running_var", "kind": "buffer", "dtype": "float16", "device": "cpu", "shape": [4], "bytes": 8},
        {"name": "num_batches_tracked", "kind": "buffer", "dtype": "int64", "device": "cpu", "shape": [], "bytes": 8},
    ]
    assert rows(report)["Net"]["parameters"] == []


def test_inputs_and_outputs_are_named_as_python_writes_them():
    net = Net()
    cond = {"pooled": torch.ones(2, dtype=torch.int64), "parts": [torch.ones(1), (torch.ones(3, dtype=torch.bool),)]}
    with audit(net) as report:
        net(torch.ones(2, 4), cond=cond, scale=2.0)
    row = rows(report)["Net"]
    assert row["inputs"] == [
        {"name": "0", "dtype": "float32", "device": "cpu", "shape": [2, 4]},
        {"name": "cond['pooled']", "dtype": "int64", "device": "cpu", "shape": [2]},
        {"name": "cond['parts'][0]", "dtype": "float32", "device": "cpu", "shape": [1]},
        {"name": "cond['parts'][1][0]", "dtype": "bool", "device": "cpu", "shape": [3]},
    ]
    outputs = {part["name"]: (part["dtype"], part["shape"]) for part in row["outputs"]}
    assert len(outputs) == 3
    assert sorted(outputs.values()) == [("float16", [2, 4]), ("float32", []), ("float32", [2, 4])]
    assert any("'more'" in name and "[1]" in name for name in outputs)


def test_dataclasses_and_named_tuples_are_looked_into():
    import dataclasses
    from typing import NamedTuple

    @dataclasses.dataclass
    class Batch:
        x: torch.Tensor
        y: torch.Tensor

    class Pair(NamedTuple):
        a: torch.Tensor
        b: torch.Tensor

    class Takes(nn.Module):
        def forward(self, batch):
            return Pair(batch.x, batch.y.half())

    net = Takes()
    with audit(net) as report:
        net(Batch(torch.ones(2), torch.ones(3)))
    row = rows(report)["Takes"]
    assert [part["dtype"] for part in row["outputs"]] == ["float32", "float16"]
    assert [part["dtype"] for part in row["inputs"]] == ["float32", "float32"]


def test_the_first_failed_call_is_listed():
    net = nn.Linear(3, 3)
    with audit(net) as report, pytest.raises(RuntimeError):
        net(torch.ones(2, 3, dtype=F64))
    row = rows(report)["Linear"]
    assert row["inputs"] == [{"name": "0", "dtype": "float64", "device": "cpu", "shape": [2, 3]}]
    assert row["outputs"] == []


# ---------------------------------------------------------------- data

SCHEMA = {
    "": "schema tool version kind torch program command date verdict error stopped seconds operations tests values "
        "ranges edits causes diffs findings casts faults comments modules rules severities",
    "findings": "rule name severity message fix site file line function source module_path op from_dtype to_dtype "
                "count bytes origin parameters docs label spots edit course seen_in",
    "casts": "kind op from_dtype to_dtype from_device to_device site file line function source module_path count bytes",
    "modules": "path class parent calls parameters inputs outputs",
}  # fmt: skip


def test_the_schema_of_the_data():
    net = Net()
    with audit(net) as report:
        net(torch.ones(2, 4))
        promotes(torch.ones(3))
        discards(torch.ones(3))
    data = report.to_dict()
    assert set(data) == set(SCHEMA[""].split())
    for part in ("findings", "casts", "modules"):
        assert data[part]
        assert {frozenset(row) for row in data[part]} == {frozenset(SCHEMA[part].split())}
    assert (data["kind"], data["torch"]) == ("audit", torch.__version__)
    assert (data["program"], data["error"]) == (None, None)
    assert data["operations"] > 5
    assert 0 <= data["seconds"] < 60
    assert set(data["rules"]) == {row["rule"] for row in data["findings"]}
    assert all(set(rule) == {"name", "why", "docs"} for rule in data["rules"].values())
    assert data["severities"] == {
        level: sum(row["severity"] == level for row in data["findings"]) for level in ("error", "warning", "info")
    }
    (creep,) = [row for row in data["findings"] if row["rule"] == "DG101"]
    assert (creep["name"], creep["from_dtype"], creep["to_dtype"]) == ("float64-creep", "float32", "float64")
    assert creep["source"] == "return x * torch.from_numpy(np.ones(3))"
    assert creep["file"] == __file__
    assert creep["function"] == "promotes"
    assert creep["line"] == promotes.__code__.co_firstlineno + 1
    assert creep["docs"].endswith("DG101.md")
    assert all(isinstance(line, str) for line in creep["origin"])


def test_the_data_is_json_as_it_is(tmp_path):
    net = Net()
    with audit(net) as report:
        net(torch.ones(2, 4))
        promotes(torch.ones(3))
    assert json.loads(report.to_json()) == json.loads(json.dumps(report.to_dict(), allow_nan=False))
    path = tmp_path / "report.json"
    text = report.to_json(path)
    assert json.loads(path.read_text(encoding="utf-8")) == json.loads(text) == report.to_dict()
    assert report.to_json(str(path)) == text


def test_names_that_are_not_ascii_survive(tmp_path):
    with audit() as report:
        größe = torch.ones(3)
        größe.half()
    path = tmp_path / "bericht ä.json"
    report.to_json(path)
    assert json.loads(path.read_text(encoding="utf-8"))["findings"][0]["source"] == "größe.half()"
    report.to_html(tmp_path / "seite.html")
    assert "größe" in (tmp_path / "seite.html").read_text(encoding="utf-8")
    assert "größe" in str(report)


@pytest.mark.parametrize("method", ["to_json", "to_html", "save_baseline"])
def test_a_path_that_cannot_be_written_is_named(tmp_path, method):
    report = made(discards)
    with pytest.raises(OSError, match="missing"):
        getattr(report, method)(tmp_path / "missing" / "file")


def odd_programs():
    import torch.export._trace  # torch's own symbolic shapes rely on somebody having done that
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        x = mode.from_tensor(torch.ones(3, 4))
        net = nn.Linear(4, 2)
        net(x).half()
        nn.Identity()(x.nonzero().float())
    torch.export.export(nn.Linear(4, 2), (torch.ones(3, 4),), dynamic_shapes=({0: torch.export.Dim("b")},))
    nn.Linear(2, 2)(torch.full((1, 2), float("nan"))).half()
    torch.ones(2).to(torch.float8_e5m2).to(torch.float32)
    torch.ones(2).to(torch.complex64).to(torch.complex128)
    nn.Identity()(torch.ones(2, 2).to_sparse())
    nn.Identity()(torch.ones(0, 2, dtype=torch.uint8))


def test_the_data_is_json_for_odd_programs():
    with audit() as report:
        odd_programs()
    assert report.faults == []
    json.dumps(report.to_dict(), allow_nan=False)
    str(report)


def test_findings_copy_and_pickle():
    report = made(discards, promotes)
    findings = list(report.findings)
    assert pickle.loads(pickle.dumps(findings)) == findings
    assert copy.deepcopy(findings) == findings
    assert str(pickle.loads(pickle.dumps(report.findings))) == str(report.findings)
    casts = report.casts
    assert pickle.loads(pickle.dumps(casts)) == casts


# ---------------------------------------------------------------- page


def test_a_page_is_written(tmp_path):
    net = Net()
    with audit(net) as report:
        net(torch.ones(2, 4))
        promotes(torch.ones(3))
    path = tmp_path / "report.html"
    text = report.to_html(path)
    assert path.read_text(encoding="utf-8") == text
    assert text.lower().lstrip().startswith("<!doctype html")
    for part in ("DG101", "Net", "BatchNorm1d", "promotes"):
        assert part in text
    assert 'src="http' not in text
    report.to_html(str(path))


# ---------------------------------------------------------------- in tests


def test_a_clean_program_passes():
    made().assert_clean()
    made(lambda x: torch.tensor(np.float64(1))).assert_clean()  # information is no fault


def test_a_finding_fails_with_its_text():
    report = made(discards, promotes)
    with pytest.raises(AssertionError) as caught:
        report.assert_clean()
    text = str(caught.value)
    assert text.startswith("the audit found 2 warnings\n")
    for part in ("DG103", "DG101", "x.half()", "help:"):
        assert part in text
    with pytest.raises(AssertionError, match=r"^the audit found 1 warning\n"):
        report.assert_clean(ignore=["DG101"])


@pytest.mark.parametrize(
    "ignore", ["DG1", "DG103, DG101", ["DG103", "float64-creep"], ("discarded-cast", "DG101"), iter(["DG1"])]
)
def test_what_is_ignored_does_not_fail(ignore):
    made(discards, promotes).assert_clean(ignore=ignore)
    made(discards).assert_clean(fail_on="never")


@pytest.mark.parametrize(
    ("ignore", "error"), [("DG999", ValueError), (["nonsense"], ValueError), ([3], TypeError), (3, TypeError)]
)
def test_a_rule_that_there_is_not_is_an_error(ignore, error):
    with pytest.raises(error, match="ignore"):
        made().assert_clean(ignore=ignore)
    with pytest.raises(error):
        audit(ignore=ignore)
    with pytest.raises(error):
        audit(select=ignore)


def test_a_baseline_lets_pass_what_was_known(tmp_path):
    path = tmp_path / "baseline.json"
    made(discards).save_baseline(path)
    made(discards).assert_clean(baseline=path)
    made().assert_clean(baseline=str(path))
    with pytest.raises(AssertionError, match="found 1 warning\n") as caught:
        made(discards, promotes).assert_clean(baseline=path)
    assert "DG101" in str(caught.value)
    assert "DG103" not in str(caught.value)
    made(discards, promotes).assert_clean(baseline=path, ignore="DG101")


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "text"),
    [
        ((3,), {}, TypeError, "^audit takes an nn.Module as model, or several, not an int"),
        ((None,), {}, TypeError, "the first value is None"),
        ((), {"model": "net"}, TypeError, "takes an nn.Module as model, or several, not a str"),
        ((), {"optimizer": 3}, TypeError, "audit takes an Optimizer as optimizer, or several, not an int"),
        ((nn.Linear(1, 1), [torch.ones(1)]), {}, TypeError, "`batch` is of type list: pass one batch"),
        ((), {"scaler": 3}, TypeError, "audit takes a GradScaler as scaler, or several, not an int"),
        (([nn.Linear(1, 1), 3],), {}, TypeError, "as model, or several, not an int"),
        ((nn.Linear(1, 1),), {"model": nn.Linear(1, 1)}, TypeError, "model twice"),
        ((), {"modle": 1}, TypeError, "modle"),
        ((None, None, None, None), {}, TypeError, "audit takes model, optimizer, scaler"),
    ],
)
def test_a_wrong_argument_is_named(args, kwargs, error, text):
    with pytest.raises(error, match=text):
        audit(*args, **kwargs)


def test_a_new_root_is_named_without_making_names_that_nobody_asked_for():
    layers, x = [nn.Linear(1, 1) for _ in range(4)], torch.ones(1, 1)
    with audit() as report:
        for layer in layers[:3]:
            layer(x)
        tracemalloc.start()
        layers[3](x)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert list(rows(report)) == ["Linear", "Linear#2", "Linear#3", "Linear#4"]
    assert most < 100_000


@pytest.mark.parametrize(
    "name", ["self", "watch", "function", "rules", "ignore", "model", "optimizer", "scaler", "args", "kwargs", "error"]
)
def test_a_function_that_is_audited_may_have_any_keyword(name):
    assert audit(lambda *args, **kwargs: (args, kwargs), 3, **{name: "DG1"}).result == ((3,), {name: "DG1"})


def test_a_function_that_is_called_without_its_arguments_is_told_how_an_audit_is_written():
    with pytest.raises(TypeError, match="missing 1 required positional argument") as caught:
        audit(lambda x: x)
    assert "audit(function, x) calls the function" in caught.value.__notes__[0]


def gives_a_copy_away(x):
    x.half()
    return x


class One(nn.Module):
    def forward(self, x):
        return gives_a_copy_away(x)


class Two(One):
    pass


def test_modules_that_have_no_name_in_common_are_a_number():
    with audit() as report:
        Two()(One()(torch.ones(2)))
    assert "in gives_a_copy_away, 2 times, in 2 modules" in str(report)
