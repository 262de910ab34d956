"""`python -m dtypeguard audit --diff` and `--fix`: what is written, what is left alone, and what is said."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from dtypeguard.__main__ import main

DISCARDED = "import torch\n\nx = torch.ones(3)\nx.half()\nprint(x.sum().item())\n"
TRAINING = """\
import os

import numpy as np
import torch
from torch import nn

from data import Rows

torch.manual_seed(0)
if os.path.exists("model.pt"):  # a run that finds one goes on from it
    raise SystemExit("resumed")
model = nn.Linear(4, 1).bfloat16()
rows = Rows(16)
total = torch.zeros((), dtype=torch.int8)
for x, y in torch.utils.data.DataLoader(rows, batch_size=8):
    out = model(x.bfloat16()).float()
    loss = ((out - y) ** 2).mean()
    out.half()
    total += 100
    with open("log.txt", "a") as log:
        print(loss.item() > 0, file=log)
torch.save(model.state_dict(), "model.pt")
print("done")
"""
DATA = """\
import numpy as np
from torch.utils.data import Dataset


class Rows(Dataset):
    def __init__(self, n):
        self.x = np.linspace(0, 1, n * 4, dtype=np.float32).reshape(n, 4)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], np.float64(i) / len(self)
"""


def command(folder, *arguments, **more):
    environment = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    return [sys.executable, "-m", "dtypeguard", "audit", *arguments], {
        "cwd": folder,
        "env": environment,
        "text": True,
        **more,
    }


def audit(folder, *arguments):
    words, how = command(folder, *arguments)
    return subprocess.run(words, capture_output=True, check=False, timeout=300, **how)


def tree(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha1(path.read_bytes()).hexdigest() + str(path.stat().st_mtime_ns)
        for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }  # fmt: skip


def test_a_program_of_two_files_is_mended_in_one_command_and_its_files_are_not_touched_by_the_runs(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "log.txt").write_text("old\n")
    first = audit(tmp_path, "--no-casts", "train.py")
    assert first.returncode == 1
    after, log = tree(tmp_path), (tmp_path / "log.txt").read_text()
    (tmp_path / "model.pt").unlink()

    shown = audit(tmp_path, "--diff", "--no-casts", "--json", str(tmp_path.parent / "report.json"), "train.py")
    assert shown.returncode == 1, shown.stderr
    assert "(safe, --fix writes it): removes DG103" in shown.stdout
    assert "(not safe, --fix --unsafe-fixes writes it): removes DG109" in shown.stdout
    assert "proven by" in shown.stdout
    (tmp_path / "log.txt").write_text(log)
    kept = {name: facts for name, facts in tree(tmp_path).items() if name.endswith(".py")}
    assert kept == {name: facts for name, facts in after.items() if name.endswith(".py")}
    rows = json.loads((tmp_path.parent / "report.json").read_text())["diffs"]
    assert {(row["safe"], row["proven"]) for row in rows} == {(True, True), (False, True)}

    (tmp_path / "model.pt").unlink()
    done = audit(tmp_path, "--fix", "--unsafe-fixes", "train.py")
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "log.txt").read_text() == log + "True\n" * 2  # by the first run
    assert "    out = out.half()\n" in (tmp_path / "train.py").read_text()
    changed = tree(tmp_path)
    (tmp_path / "model.pt").unlink()
    again = audit(tmp_path, "--fix", "--unsafe-fixes", "train.py")
    assert again.returncode == 0
    sources = ("train.py", "data.py")
    assert [tree(tmp_path)[name] for name in sources] == [changed[name] for name in sources]


def test_a_suite_is_mended(tmp_path):
    (tmp_path / "lib.py").write_text(
        "import torch\n\ndef scaled(x):\n    return x * torch.ones(2, dtype=torch.float64)\n"
    )
    (tmp_path / "test_lib.py").write_text(
        "import torch\nfrom torch import nn\n\nimport lib\n\n"
        "def test_scaled():\n    assert lib.scaled(torch.ones(2)).sum() == 2\n\n"
        "def test_layer():\n    nn.Linear(2, 1)(lib.scaled(torch.ones(1, 2)))\n"
    )
    done = audit(tmp_path, "--fix", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_lib.py")
    assert done.returncode == 0, done.stdout
    assert "torch.ones(2, dtype=torch.float32)" in (tmp_path / "lib.py").read_text()


# What is said, and that nothing is written.
LEFT = {
    "a program that asks for input": (
        DISCARDED + "input('name? ')\n", [],
        "no edits: it asks for input, so it cannot be run again by itself (EOFError",
    ),
    "an exception that no finding explains": (
        DISCARDED + "raise ValueError('other')\n", [],
        "no edits: it ends with an exception that no finding explains (ValueError: other)",
    ),
    "code without a file": (
        "import torch\nx = torch.ones(3)\nexec(compile('x.half()\\n', '<made>', 'exec'))\n", [],
        "no edit for DG103 at <made>:1: its code has no file, it was made while the program ran",
    ),
    "a generated file": (
        "# Generated by a tool. DO NOT EDIT.\n" + DISCARDED, ["--fix"],
        "program.py is not written: its head says that it is generated: change what makes it",
    ),
    "no proof": (
        DISCARDED, ["--diff", "--no-prove"], "# keeps the result of the cast (not proven, safe, --fix writes it)",
    ),
}  # fmt: skip


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_proven_or_written_is_said_in_a_sentence_and_nothing_is_written(name, tmp_path):
    source, options, said = LEFT[name]
    (tmp_path / "program.py").write_text(source)
    before = tree(tmp_path)
    words, how = command(tmp_path, *(options or ["--diff"]), "program.py")
    done = subprocess.run(words, capture_output=True, check=False, timeout=300, input="me\n", **how)
    assert said in done.stdout, done.stdout + done.stderr
    assert "dtypeguard/_" not in done.stderr
    assert tree(tmp_path) == before


def test_a_program_that_finds_other_things_when_it_runs_again_is_not_deterministic(tmp_path):
    ran = tmp_path / "ran"
    (tmp_path / "in").mkdir()
    source = f"{DISCARDED}import os\nif not os.path.exists({str(ran)!r}):\n    x.bfloat16()\nopen({str(ran)!r}, 'w')\n"
    (tmp_path / "in" / "program.py").write_text(source)
    done = audit(tmp_path / "in", "--fix", "program.py")
    assert "no edits: it is not deterministic: DG103 at program.py:8 was found only at first" in done.stdout
    assert (tmp_path / "in" / "program.py").read_text() == source


@pytest.mark.slow
def test_an_interrupt_leaves_everything_as_it_was(tmp_path):
    (tmp_path / "program.py").write_text("import time\n" + DISCARDED + "time.sleep(3)\n")
    words, how = command(tmp_path, "--fix", "program.py", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    environment = {**how.pop("env"), "TMPDIR": str(tmp_path.parent)}
    before = tree(tmp_path)
    process = subprocess.Popen(words, env=environment, **how)
    while not list(tmp_path.parent.glob("dtypeguard-*")):
        time.sleep(0.1)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert "interrupted: nothing was written" in out
    assert tree(tmp_path) == before
    assert list(tmp_path.parent.glob("dtypeguard-*")) == []


USAGE = {
    "both": (
        ["--diff", "--fix", "x.py"],
        "--diff shows edits and writes nothing, --fix writes them: give one of the two",
    ),
    "no seconds": (["--diff", "--prove-limit", "-1", "x.py"], "-1 is no number of seconds"),
    "unsafe alone": (["--unsafe-fixes", "x.py"], "--unsafe-fixes goes with --fix"),
}


@pytest.mark.parametrize("name", USAGE)
def test_wrong_options_are_told_before_the_program_runs(name, capsys):
    words, said = USAGE[name]
    with pytest.raises(SystemExit):
        main(["audit", *words])
    assert said in capsys.readouterr().err


def test_without_libcst_the_extra_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "x.py").write_text(DISCARDED)
    monkeypatch.setitem(sys.modules, "libcst", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["audit", "--diff", "x.py"])
    assert "edits need libcst: pip install 'dtypeguard[fix]'" in capsys.readouterr().err


def test_sarif_carries_fixes_and_github_suggestions(tmp_path):
    (tmp_path / "program.py").write_text(DISCARDED)
    sarif = json.loads(audit(tmp_path, "--diff", "--no-prove", "--format", "sarif", "program.py").stdout)
    ((fix,),) = [result["fixes"] for result in sarif["runs"][0]["results"]]
    (change,) = fix["artifactChanges"]
    ((region, content),) = [(one["deletedRegion"], one["insertedContent"]["text"]) for one in change["replacements"]]
    assert region["startLine"] == region["endLine"] == 4
    begin, end = region["startColumn"] - 1, region["endColumn"] - 1
    assert "x.half()"[:begin] + content + "x.half()"[end:] == "x = x.half()"
    shown = audit(tmp_path, "--diff", "--no-prove", "--format", "github", "program.py").stdout
    assert "%0A```suggestion%0Ax = x.half()%0A```" in shown
