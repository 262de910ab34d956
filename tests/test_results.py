"""What the tools give, and what they take, is alike: one envelope, one page, one vocabulary."""

import dataclasses
import errno
import json
import re
import warnings
import xml.dom.minidom

import pytest
import torch
from html_page import Page
from torch import nn

import dtypeguard
from dtypeguard import DtypeGuardWarning, amp, audit, capture, compare, describe, dryrun, guard, manifest
from dtypeguard.testing import check_module

BF16 = torch.bfloat16
torch.manual_seed(0)  # some weights have a curve of one point
MODEL, X = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), torch.ones(2, 3)
LAYER = nn.Linear(3, 2)


def compared():
    return compare(MODEL, X, dtype=BF16)


def repaired():
    with pytest.warns(dtypeguard.CastWarning):
        guard(nn.Linear(3, 1), mode="lenient")(torch.ones(1, 3).double())
    return dtypeguard.casts()


def watched():
    model = nn.Linear(3, 1).to(BF16)
    return amp.watch(model, torch.optim.SGD(model.parameters(), lr=1e-9), mode="warn")


def measured():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with amp.watch(model, optimizer, metrics=1, mode="off") as watch:
        for _ in range(3):
            model(X).sum().backward()
            optimizer.step()
    return watch.history


RESULTS = {
    "audit": lambda: audit(lambda: X.double() + X),
    "findings": lambda: audit(lambda: X.double() + X).findings,
    "ranges": lambda: audit(MODEL, X, values="range").ranges,
    "watch": watched,
    "history": measured,
    "compare": compared,
    "kept": lambda: compared().keep(error=1e-6),
    "dryrun": lambda: dryrun(MODEL, X, device="cpu"),
    "dryrun cell": lambda: dryrun(MODEL, X, device="cpu")["bfloat16", "float32", None],
    "describe": lambda: describe(MODEL),
    "check_module": lambda: check_module(nn.LayerNorm(3), batch=X),
    "casts": repaired,
}


@pytest.mark.parametrize("kind", RESULTS)
def test_a_result_is_data_json_and_a_page_that_needs_nothing_else(kind, tmp_path):
    result = RESULTS[kind]()
    data = result.to_dict()
    assert list(data)[:5] == ["schema", "tool", "version", "kind", "torch"]
    assert [data[key] for key in list(data)[:5]] == [1, "dtypeguard", dtypeguard.__version__, kind, torch.__version__]
    text = result.to_json(tmp_path / "result.json")
    assert json.loads(text) == json.loads((tmp_path / "result.json").read_text()) == data
    page = result.to_html(tmp_path / "result.html")
    assert (tmp_path / "result.html").read_text() == page
    parts = "default-src 'none'", "img-src data:", "script-src 'sha256-[^;]+'", "style-src 'sha256-[^;]+'"
    assert re.search(f'content="{"; ".join(parts)}"'.replace("'", "&#39;"), page)
    assert not re.search(r"(src|href)=\"(?!https://github.com|#|data:)", page)
    assert result._repr_html_().startswith('<div class="dtypeguard">')
    assert str(result)


@pytest.mark.parametrize(
    ("method", "name"), [("to_html", "report.html"), ("to_json", "report.json"), ("to_svg", "picture.svg")]
)
def test_a_folder_in_the_place_of_a_file_is_named(method, name, tmp_path):
    with pytest.raises(IsADirectoryError) as caught:
        getattr(compared(), method)(tmp_path)
    inside = str(tmp_path / name)
    assert str(caught.value) == f"path={str(tmp_path)!r} is a folder: name a file in it, {inside!r} for example"
    with pytest.raises(TypeError) as caught:
        getattr(compared(), method)(3)
    assert str(caught.value) == f"path must be the name of a file, {name!r} for example, not int"


SAVED = {
    "html": lambda path: compared().to_html(path),
    "json": lambda path: compared().to_json(path),
    "svg": lambda path: compared().to_svg(path),
    "manifest": lambda path: manifest(MODEL).save(path),
    "baseline": lambda path: audit(lambda: X.double() + X).save_baseline(path),
    "capture": lambda path: capture(MODEL, X, path),
}


@pytest.mark.parametrize("name", SAVED)
def test_a_path_that_cannot_be_written_is_named_with_the_reason(name, tmp_path):
    path = tmp_path / "gone" / "file"
    with pytest.raises(FileNotFoundError) as caught:
        SAVED[name](path)
    assert str(caught.value) == f"cannot write path={str(path)!r}: there is no folder {tmp_path}/gone"
    assert caught.value.errno == errno.ENOENT


PARTS = {
    "Finding": lambda: audit(lambda: X.double() + X).findings[0],
    "Cast": lambda: audit(lambda: X.double() + X).casts[0],
    "CastRecord": lambda: repaired()[0],
    "Layer": lambda: compared().layers[0],
    "HeldModule": lambda: describe(MODEL).modules[0],
    "Range": lambda: RESULTS["ranges"]().rows[0],
    "Moment": lambda: measured().moments[0],
    "Cell": lambda: check_module(nn.LayerNorm(3), batch=X).cells[0],
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_result_shows_its_facts_in_a_notebook(name):
    part = PARTS[name]()
    shown = Page(part._repr_html_())
    assert shown.said(shown.all("p", "title")[0]) == name
    facts = [shown.said(cell) for cell in shown.all("td")[::2]]
    assert set(facts) <= {field.name for field in dataclasses.fields(part)}
    assert len(facts) > 3


PICTURES = {
    "ranges": "range of values by module",
    "history": "what precision did to the steps",
    "compare": "Sequential in bfloat16: error against parameters in float32",
    "kept": "error against parameters in float32",
    "dryrun": "Sequential: in which dtypes does it run?",
    "formats": "Sequential: error against bits a weight",
    "placed": "error against bits a weight",
    "integers": "Picks in bfloat16: error from input to output",
}
WIDE = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))


class Picks(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        return self.fc(x).argmax(-1)


def in_formats():
    return compare(WIDE, torch.ones(2, 32), format=("nvfp4", "mxfp8"))


DRAWN = {name: RESULTS[name] for name in ("ranges", "history", "compare", "kept", "dryrun")} | {
    "formats": in_formats,
    "placed": lambda: in_formats().keep(bits=7),
    "integers": lambda: compare(Picks(), X, dtype=BF16),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_a_picture_is_the_same_as_a_file_in_the_page_and_in_the_cell(kind, tmp_path):
    result = DRAWN[kind]()
    text = result.to_svg(tmp_path / "result.svg")
    assert (tmp_path / "result.svg").read_text("utf-8") == text == result.to_svg()
    root = xml.dom.minidom.parseString(text).documentElement
    assert root.getAttribute("aria-label") == PICTURES[kind]
    texts = [text for text in root.getElementsByTagName("text") if not text.getAttribute("font-weight")]  # no title
    said = [text.firstChild.data for text in texts]
    for place in (result._repr_html_(), *([result.to_html()] * (kind != "integers"))):  # whose page has the strip
        page = Page(place)
        (picture,) = page.all("svg", "picture")
        assert picture["aria-label"] == PICTURES[kind]
        inside = [e for e in page.all("text") if picture["from"] <= e["from"] <= picture["to"]]
        assert all(page.said(e).startswith(one) for e, one in zip(inside, said, strict=True))
    with pytest.raises(OSError, match="missing"):
        result.to_svg(tmp_path / "missing" / "result.svg")


def test_expected_errors_need_no_keep():
    result = compared()
    (_, first), *_ = expected = result.curve
    assert first == result.error
    assert len(expected) > 1
    assert result.keep(error=1e-6).curve == tuple(result.curve) == tuple(map(tuple, result.to_dict()["curve"]))
    assert in_formats().curve == compare(Picks(), X, dtype=BF16).curve == []


def test_what_a_model_is_named_is_never_markup():
    name = "Net<script>\x07"
    model = type(name, (nn.Linear,), {})(3, 2)
    for result in (describe(model), dryrun(model, X, device="cpu"), check_module(lambda: model, batch=X)):
        assert name[:8] in str(result)
        assert "<script>\x07" not in result.to_html()
        assert "Net&lt;script&gt;" in result.to_html()


# ---------------------------------------------------------------- options


NAMES = {
    BF16: ["bfloat16", "bf16", "torch.bfloat16", "BFloat16"],
    torch.float16: ["float16", "f16", "fp16", "half", "torch.half"],
}


@pytest.mark.parametrize(
    ("dtype", "name"), [(dtype, name) for dtype, names in NAMES.items() for name in (dtype, *names)]
)
def test_a_dtype_goes_by_its_names(dtype, name):
    told = str(dtype).removeprefix("torch.")
    assert compare(LAYER, X, dtype=name).to_dict()["dtype"] == told
    assert compare(LAYER, X, region=name).to_dict()["region"] == told
    assert dryrun(LAYER, X, dtype=name, region=[None, name], device="cpu")[name, dtype, name].parameters is dtype
    assert {cell.input_dtype for cell in check_module(LAYER, batch=X, dtype=name, region=None).cells} == {dtype}
    assert describe(LAYER, dtype=name)[""].dtype is dtype


WRONG = {
    "compare(m, x, dtyp=)": (lambda: compare(LAYER, X, dtyp=BF16), TypeError, "no option dtyp=: did you mean dtype=?"),
    "compare(m, x, autocast=)": (
        lambda: compare(LAYER, X, autocast=BF16), TypeError, "no option autocast=. The options are dtype, region",
    ),
    "compare(m, x, y)": (
        lambda: compare(LAYER, X, X, dtype=BF16), TypeError,
        "it takes model and batch, and got 3 values: several arguments are one batch, (x, y)",
    ),
    "compare(model=m)": (
        lambda: compare(model=LAYER, batch=X, dtype=BF16), TypeError,
        "write model without its name, as the first value",
    ),
    "dryrun(m, x, dtypes=)": (lambda: dryrun(LAYER, X, dtypes=BF16), TypeError, "dtypes=: did you mean dtype=?"),
    "manifest(m, shape=)": (
        lambda: dtypeguard.manifest(LAYER, shape=True), TypeError,
        "manifest: there is no option shape=: did you mean shapes="
    ),
    "manifest(m, optimiser=)": (
        lambda: dtypeguard.manifest(LAYER, optimiser=X), TypeError,
        "optimiser=: did you mean optimizer=? The options are optimizer, batch, shapes, devices"
    ),
    "watch(m, optimiser=)": (
        lambda: dtypeguard.amp.watch(LAYER, optimiser=X), TypeError, "optimiser=: did you mean optimizer=?"
    ),
    "keep(errors=)": (
        lambda: compare(LAYER, X, dtype=BF16).keep(errors=1), TypeError,
        "keep: there is no option errors=: did you mean error="
    ),
    "assert_runs(regoin=)": (
        lambda: dryrun(LAYER, X).assert_runs(BF16, regoin=BF16), TypeError,
        "there is no option regoin=: did you mean region="
    ),
    "check_ranks(m, shape=)": (
        lambda: dtypeguard.distributed.check_ranks(LAYER, shape=1), TypeError,
        "there is no option shape=: did you mean shapes="
    ),
    "check_module(m, example=)": (lambda: check_module(LAYER, example=X), TypeError, "there is no option example="),
    "describe(m, mod=)": (lambda: describe(LAYER, mod="strict"), TypeError, "no option mod=: did you mean mode=?"),
    "audit(value=)": (lambda: audit(value=True), TypeError, "no option value=: did you mean values=?"),
    "region='nonne'": (lambda: dryrun(LAYER, X, region="nonne"), ValueError, "is no dtype: did you mean None?"),
    "dtype='bfloat'": (lambda: compare(LAYER, X, dtype="bfloat"), ValueError, "dtype='bfloat' is no dtype: did"),
    "dtype='half16'": (lambda: compare(LAYER, X, dtype="half16"), ValueError, "no dtype: did you mean 'float16'?"),
    "dtype=16": (lambda: compare(LAYER, X, dtype=16), TypeError, "dtype=16 (int) is no dtype"),
    "guard(dtype='int8')": (lambda: guard(LAYER, dtype="int8"), ValueError, "dtype='int8' is no floating dtype"),
    "audit(values='True')": (lambda: audit(values="True"), ValueError, "not values='True'"),
    "report.show(3)": (lambda: audit(LAYER, X).show(3), TypeError, "show: file=3 is no open file: pass sys.stderr"),
    "report.save_baseline(3)": (
        lambda: audit(LAYER, X).save_baseline(3), TypeError,
        "path must be the name of a file, 'baseline.json' for example, not int"
    ),
    "report.assert_clean(baseline=3)": (
        lambda: audit(LAYER, X).assert_clean(baseline=3), TypeError,
        "baseline must be the name of a file, 'baseline.json' for example, not int"
    ),
    "manifest.load(3)": (
        lambda: manifest.load(3), TypeError, "path must be the name of a file, 'dtypes.lock' for example, not int"
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG)
def test_a_wrong_option_is_named(call):
    call, kind, message = WRONG[call]
    with pytest.raises(kind, match=re.escape(message)) as error:
        call()
    assert not isinstance(error.value, dtypeguard.DtypeGuardError)


@pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
def test_values_of_options_ignore_case(upper):
    values = ("strict", "safe", "boundary", "follow", "always", "range", "error")
    mode, casting, depth, autocast, verify, way, severity = (name.upper() if upper else name for name in values)
    guard(nn.Linear(3, 2), mode=mode, casting=casting, depth=depth, autocast=autocast, verify=verify)
    with audit(values=way) as report:
        X + X
    report.assert_clean(fail_on=severity)


def test_a_batch_goes_by_place_and_by_name():
    assert compare(LAYER, batch=X, dtype=BF16).error == compare(LAYER, X, dtype=BF16).error
    assert len(dryrun(LAYER, batch=X, device="cpu")) == len(dryrun(LAYER, X, device="cpu"))
    assert audit(LAYER, batch=X).result.shape == (2, 2)


def test_two_optimizers_are_no_batch():
    optimizers = tuple(torch.optim.SGD([p], lr=0.1) for p in LAYER.parameters())
    with audit(LAYER, optimizers) as report:
        LAYER(X)
    assert report.findings == []


# ---------------------------------------------------------------- what reads as if it worked


def test_mode_as_a_statement_says_that_it_does_nothing():
    with pytest.warns(DtypeGuardWarning, match=re.escape("mode('strict') does nothing by itself")) as caught:
        dtypeguard.mode("strict")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with dtypeguard.mode("strict"):
            pass
        dtypeguard.mode("strict")(lambda: None)()
        with pytest.raises(ValueError, match="is not a mode"):
            dtypeguard.mode("strickt")


@pytest.mark.parametrize("batch", [X, (X,), {"input": X}], ids=["tensor", "tuple", "dict"])
def test_audit_of_a_model_and_a_batch_calls_the_model(batch):
    class Doubles(nn.Linear):
        def forward(self, input):
            return super().forward(input) * torch.ones(2, dtype=torch.float64)

    report = audit(Doubles(3, 2), batch)
    assert report.result.shape == (2, 2)
    assert [finding.rule for finding in report.findings] == ["DG101"]
    assert report.findings[0].module_path == "Doubles"
    assert audit(Doubles(3, 2), batch, values="range", ignore="DG101").findings == []
