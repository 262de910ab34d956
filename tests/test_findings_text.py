"""How findings are printed, word for word, against tests/golden/findings.txt; and what is put together.

`python tests/test_findings_text.py` writes the file anew; read the difference before you commit it.
"""

import io
import linecache
import os
import re
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

import dtypeguard
from dtypeguard._show.report.causes import pattern

GOLDEN = Path(__file__).parent / "golden" / "findings.txt"
DATA = """\
import numpy as np
import torch


def mean_of(images):
    return torch.from_numpy(np.asarray(images).mean((0, 2, 3)))
"""
PROGRAM = """\
import numpy as np
import torch
from data import mean_of
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        x.to(self.linear.weight.dtype if self.linear.weight.dtype is torch.float16 else torch.bfloat16, copy=True)
        return self.linear(x)


model = nn.Sequential(*(Block() for _ in range(24)), nn.Linear(8, 2))
model(torch.ones(4, 8))

pixels = torch.ones(2, 3, 4, 4)
mean = mean_of(np.ones((2, 3, 4, 4)))
batch = pixels - mean[:, None, None]
other = pixels * mean[:, None, None] + torch.stack(
    [pixels, pixels]
)[0]

counts = torch.tensor(np.float64(3))
nn.Linear(8, 2)(torch.from_numpy(np.ones((3, 8))))
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    return write(tmp_path, monkeypatch.chdir, monkeypatch.syspath_prepend)


def write(folder, go, extend):
    (folder / "data.py").write_text(DATA)
    (folder / "train.py").write_text(PROGRAM)
    go(folder)
    extend(str(folder))
    return folder / "train.py"


def audited(program):
    with pytest.raises(RuntimeError, match="dtype"), dtypeguard.audit() as report:
        runpy.run_path(str(program))
    return report


def shown(report, columns, colour=False):
    os.environ["COLUMNS"] = str(columns)
    stream = io.StringIO()
    stream.isatty = lambda: colour
    report.show(stream)
    return stream.getvalue()


def text_of(program):
    report = audited(program)
    parts = [f"# {columns} columns\n\n{shown(report, columns)}" for columns in (100, 60)]
    return "\n".join(parts).replace(str(program.parent) + os.sep, "")


def test_the_text(program, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert text_of(program) == GOLDEN.read_text()


def test_colours_are_for_terminals(program, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    report = audited(program)
    plain, coloured = shown(report, 100), shown(report, 100, colour=True)
    assert "\x1b[1;33mwarning[DG101]\x1b[0m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(report, 100, colour=True) == plain
    assert "\x1b" not in str(report)


def test_paths_are_never_split(program, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = str(audited(program))
    assert re.findall(r"--> (\S+)", text)
    assert {place.partition(":")[0] for place in re.findall(r"--> (\S+)", text)} <= {"train.py", "data.py"}


def test_one_cause_is_one(program):
    data = audited(program).to_dict()
    causes = [(cause["rule"], cause["where"], len(cause["findings"])) for cause in data["causes"]]
    assert ("DG103", "Sequential.* (24 modules)", 24) in causes
    assert ("DG101", "", 2) in causes  # two lines, one birth
    (edit,) = [edit for edit in data["edits"] if edit["place"].endswith("data.py:6")]
    assert (edit["removes"], edit["fix"]) == (
        "1 warning",
        "convert where the float64 is born: `torch.from_numpy(np.asarray(images).mean((0, 2, 3))).to(torch.float32)`",
    )
    assert data["verdict"] == "FAIL: 1 error and 2 warnings, 3 lines to change; 1 info"


def test_what_comes_of_a_fault_is_mended_with_it():
    """And only where the fault is told: an edit of its own elsewhere."""
    for values, removes, of in ((True, "2 errors", "sqrt"), (None, "1 error", "step")):
        weight, model = torch.tensor([-1.0, 0.5], requires_grad=True), nn.Linear(2, 1)
        optimizer = torch.optim.SGD([weight, *model.parameters()], lr=0.1)
        with dtypeguard.audit(values=values) as report:
            model(weight.sqrt()[None]).sum().backward()
            optimizer.step()
        (edit,) = report.to_dict()["edits"]
        assert edit["removes"] == removes
        line = int(edit["place"].rpartition(":")[2])
        assert of in linecache.getline(__file__, line)


@pytest.mark.parametrize(
    ("paths", "common"),
    [
        (["Net.blocks.0", "Net.blocks.1"], "Net.blocks.*"),
        (["Net.0.norm", "Net.1.norm"], "Net.*.norm"),
        (["Net.a", "Net.b.c", "Net.b.d"], "Net.*"),
        (["A", "B"], "*"),
    ],
)
def test_what_modules_have_in_common(paths, common):
    assert pattern(paths) == common


if __name__ == "__main__":
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        GOLDEN.write_text(text_of(write(Path(name).resolve(), os.chdir, lambda path: sys.path.insert(0, path))))
