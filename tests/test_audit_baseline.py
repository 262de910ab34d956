"""Baselines: what is known, what is new, and files that are none."""

import json
import os
import random
import stat

import pytest
import torch

from dtypeguard._engine.watch.rule import Finding
from dtypeguard._show.report import baseline as _baseline
from dtypeguard._show.report.baseline import load, save


def finding(folder, line=7, **facts):
    """A row of a report."""
    row = {
        "rule": "DG309", "severity": "error", "message": "clipped", "file": str(folder / "train.py"), "line": line,
        "function": "step", "source": "clip(model)", "module_path": None, "from_dtype": "float32", "to_dtype": None,
        "count": 3, "bytes": 40, "site": f"train.py:{line}, in step",
    }  # fmt: skip
    return row | facts


# --- what is new


def test_what_was_saved_is_known(tmp_path):
    known = [finding(tmp_path), finding(tmp_path, rule="DG310"), finding(tmp_path, function="other")]
    save(known, tmp_path / "known.json")
    assert load(tmp_path / "known.json").new(known) == []
    assert load(tmp_path / "known.json").new([]) == []


@pytest.mark.parametrize(
    "change",
    [
        {"line": 99},  # something was written above it
        {"count": 5000},
        {"bytes": 0},
        {"message": "clipped by 0.3"},  # numbers differ between runs
        {"severity": "warning"},
        {"site": "elsewhere"},
        {"source": "    clip(model)\n"},  # indented
        {"to_dtype": ""},
    ],
)
def test_what_may_change(tmp_path, change):
    save([finding(tmp_path)], tmp_path / "known.json")
    assert load(tmp_path / "known.json").new([finding(tmp_path) | change]) == []


@pytest.mark.parametrize(
    "change",
    [
        {"rule": "DG310"},
        {"file": "other.py"},
        {"function": "epoch"},
        {"source": "clip(model, 1.0)"},
        {"module_path": "Net.head"},
        {"from_dtype": "float64"},
        {"to_dtype": "float16"},
        {"file": None},
    ],
)
def test_what_makes_a_finding_new(tmp_path, change):
    save([finding(tmp_path)], tmp_path / "known.json")
    changed = finding(tmp_path) | change
    assert load(tmp_path / "known.json").new([changed, finding(tmp_path)]) == [changed]


@pytest.mark.parametrize(("before", "now", "new"), [(0, 2, 2), (1, 1, 0), (1, 3, 2), (2, 2, 0), (3, 1, 0), (2, 0, 0)])
def test_the_same_text_twice_is_two_findings(tmp_path, before, now, new):
    save([finding(tmp_path, line) for line in range(before)], tmp_path / "known.json")
    findings = [finding(tmp_path, 100 + line) for line in range(now)]
    assert load(tmp_path / "known.json").new(findings) == findings[now - new :]


def test_dtypes_count_as_text_or_as_dtypes(tmp_path):
    save([finding(tmp_path, from_dtype=torch.float32)], tmp_path / "known.json")
    assert load(tmp_path / "known.json").new([finding(tmp_path, from_dtype="float32")]) == []


# --- findings as objects


@pytest.mark.parametrize("absolute", [True, False])
def test_findings_of_a_report_equal_its_rows(tmp_path, monkeypatch, absolute):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("def step():\n    clip(model)\n")
    file = str(tmp_path / "train.py") if absolute else "train.py"
    made = Finding("DG309", "error", "clipped", f"{file}:2, in step", from_dtype=torch.float32)
    save([made], tmp_path / "known.json")
    assert load("known.json").new([finding(tmp_path)]) == []
    save([finding(tmp_path)], tmp_path / "known.json")
    assert load("known.json").new([made]) == []


@pytest.mark.parametrize("site", [None, "", "somewhere", "a:b, in c", "gone.py:3, in f", "<stdin>:1, in <module>"])
def test_findings_without_a_line(tmp_path, site):
    made = Finding("DG401", "error", "stale", site, "Net")
    save([made], tmp_path / "known.json")
    baseline = load(tmp_path / "known.json")
    assert baseline.new([made]) == []
    assert baseline.new([Finding("DG402", "error", "stale", site, "Net")]) != []


# --- the file


def test_the_file(tmp_path):
    (tmp_path / "ci").mkdir()
    rows = [finding(tmp_path, rule="DG310"), finding(tmp_path, module_path="Net.fc")]
    path = save(rows, tmp_path / "ci" / "known.json")
    text = path.read_text()
    assert json.loads(text) == {
        "kind": "dtypeguard baseline",
        "schema": 1,
        "findings": [
            {
                "rule": "DG309", "file": "../train.py", "function": "step", "source": "clip(model)",
                "module": "Net.fc", "from": "float32", "to": "",
            },
            {
                "rule": "DG310", "file": "../train.py", "function": "step", "source": "clip(model)",
                "module": "", "from": "float32", "to": "",
            },
        ],
    }  # fmt: skip
    assert text.endswith("}\n")


def test_the_order_of_findings_does_not_change_the_file(tmp_path):
    rows = [finding(tmp_path, rule=f"DG30{n}", function=f) for n in range(1, 9) for f in ("a", "b", "c")]
    first = save(rows, tmp_path / "known.json").read_bytes()
    random.Random(3).shuffle(rows)
    assert save(rows, tmp_path / "known.json").read_bytes() == first


def test_a_project_may_move(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new" / "place"
    old.mkdir()
    save([finding(old)], old / "known.json")
    new.parent.mkdir()
    old.rename(new)
    assert load(new / "known.json").new([finding(new)]) == []


def test_files_of_packages_are_known_from_where_packages_are_installed(tmp_path):
    here, there = tmp_path / "a/lib/python3.11/site-packages", tmp_path / "b/lib64/python3.13/site-packages"
    save([finding(here / "net")], tmp_path / "known.json")
    assert load(tmp_path / "known.json").new([finding(there / "net")]) == []
    assert '"file": "site-packages/net/train.py"' in (tmp_path / "known.json").read_text()


def test_the_current_folder_does_not_matter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save([finding(tmp_path)], "known.json")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load("../known.json").new([finding(tmp_path)]) == []


@pytest.mark.parametrize("text", ["é ü 漢字", "\udcff", 'quotes " and \\', "tab\tin", "\u2028", "a" * 10_000])
def test_any_text_survives(tmp_path, text):
    rows = [finding(tmp_path, source=text, function=text)]
    save(rows, tmp_path / "known.json")
    assert load(tmp_path / "known.json").new(rows) == []


# --- writing


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = save([finding(tmp_path)], tmp_path / "known.json")
    before = path.read_bytes()

    def replace(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_baseline.os, "replace", replace)
    with pytest.raises(OSError, match="no space left"):
        save([], path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["known.json"]


def test_a_link_stays_a_link_and_permissions_stay(tmp_path):
    real = save([], tmp_path / "real.json")
    real.chmod(0o640)
    (tmp_path / "link.json").symlink_to(real)
    save([finding(tmp_path)], tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert load(real).new([finding(tmp_path)]) == []


# --- files that are no baseline


GOOD = {"kind": "dtypeguard baseline", "schema": 1, "findings": []}
ROW = dict.fromkeys(("rule", "file", "function", "source", "module", "from", "to"), "")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "is no baseline, as --write-baseline writes it: it is no JSON .Expecting value"),
        ("{", "is no baseline, as "),
        ("[" * 100_000, "is no baseline, as "),
        (b"\xff\xfe\x00", "is no baseline, as "),
        ("[]", 'it lacks "kind": "dtypeguard baseline"'),
        ("null", "it lacks"),
        ("{}", "it lacks"),
        ({"schema": 1, "dtypeguard": "0.1.0", "findings": []}, "it lacks"),  # a report
        (GOOD | {"schema": 2}, "is a baseline of schema 2, not 1: write it anew"),
        (GOOD | {"schema": None}, "schema None"),
        ({"kind": GOOD["kind"]}, "schema None"),
        ({"kind": GOOD["kind"], "schema": 1}, '"findings" is not a list'),
        (GOOD | {"findings": {}}, '"findings" is not a list'),
        (GOOD | {"findings": [3]}, r"findings\[0\] needs the texts rule, file, function, source, module, from, to"),
        (GOOD | {"findings": [ROW, {}]}, r"findings\[1\] needs the texts"),
        (GOOD | {"findings": [ROW | {"module": None}]}, r"findings\[0\] needs the texts"),
        (GOOD | {"findings": [ROW | {"rule": 3}]}, r"findings\[0\] needs the texts"),
    ],
)
def test_files_that_are_no_baseline(tmp_path, data, message):
    path = tmp_path / "known.json"
    data = json.dumps(data) if isinstance(data, dict) else data
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(ValueError, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no baseline .*known\.json: write it first"):
        load(tmp_path / "known.json")


def test_a_folder(tmp_path):
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        load(tmp_path)
