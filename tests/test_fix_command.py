"""`python -m dtypeguard audit --diff` and `--fix`: what is written, what is left alone, and what is said."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import warm

from dtypeguard.__main__ import main
from dtypeguard._tools.fix.command import Mending

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
    environment = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    return warm.run("dtypeguard", "audit", *arguments, cwd=folder, env=environment, timeout=300)


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
    assert re.search(r"audit report: no warning is left; \d+ warnings fixed; \d+ info not shown; ", done.stdout)
    assert re.search(r"\nfixed .*: removes DG103 at .*\n  DG103: [A-Z][^:]*: `out.half\(\)`", done.stdout)
    assert (tmp_path / "log.txt").read_text() == log + "True\n" * 2  # by the first run
    assert "out.half()" not in (tmp_path / "train.py").read_text()  # each round makes another `out`
    changed = tree(tmp_path)
    (tmp_path / "model.pt").unlink()
    again = audit(tmp_path, "--fix", "--unsafe-fixes", "train.py")
    assert again.returncode == 0
    sources = ("train.py", "data.py")
    assert [tree(tmp_path)[name] for name in sources] == [changed[name] for name in sources]


OPEN = """\
import torch
from torch import nn

model, x = nn.Linear(4, 3), torch.randn(64, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
amp = torch.autocast("cpu", dtype=torch.bfloat16)
amp.__enter__()
for _ in range(5):
    loss = (model(x).float() - x[:, :3]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_region_that_nobody_leaves_is_entered_around_the_calls_of_the_model(tmp_path):
    (tmp_path / "train.py").write_text(OPEN)
    done = audit(tmp_path, "--fix", "--unsafe-fixes", "train.py")
    assert done.returncode == 0, done.stdout
    program = (tmp_path / "train.py").read_text()
    assert "    with amp:\n        loss = (model(x)" in program
    assert "__enter__" not in program


# Programs, and why a finding of theirs has no edit.
WITHOUT = {
    "it prints something else": (
        "clips = {n: torch.full((8,), n, dtype=torch.int16) for n in (256, 100)}\n"
        "power = {n: (pcm * pcm).sum().item() for n, pcm in clips.items()}\n"
        "print('loud' if max(power, key=power.get) == 256 else 'low')",
        "no edit for DG109 at program.py:3: with what removes it the program prints `loud`, not `low`: look whether",
    ),
    "nothing tells what a mask hides": (
        "mask = torch.eye(4)\nprint((torch.randn(4, 4) + mask).softmax(-1).sum().item())",
        "no edit for DG111 at program.py:3: none is known for such code",
    ),
}


@pytest.mark.parametrize(("program", "why"), WITHOUT.values(), ids=WITHOUT)
def test_why_there_is_no_edit(tmp_path, program, why):
    (tmp_path / "program.py").write_text(f"import torch\n{program}\n")
    assert why in audit(tmp_path, "--diff", "program.py").stdout


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


PAST_SCALER = """\
import torch
from torch import nn
model = nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
scaler.scale(model(torch.ones(2, 8)).square().mean()).backward()
opt.step()
scaler.update()
"""

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
    "an exception that a line before it led to": (
        PAST_SCALER, [], "# steps the optimizer by the scaler (safe, --fix writes it): removes DG312 at program.py:7",
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
    source = f"{DISCARDED}import os\nif os.getcwd() == open('first').read():\n    x.bfloat16()\n"
    (tmp_path / "program.py").write_text(source)
    (tmp_path / "first").write_text(os.path.realpath(tmp_path))
    done = audit(tmp_path, "--fix", "program.py")
    assert "no edits: it is not deterministic: DG103 at program.py:8 was found only at first" in done.stdout
    assert (tmp_path / "program.py").read_text() == source


WRITES = """\
import sqlite3
import numpy as np, torch
from torch import nn
log = open("log.txt", "a")
log.write("begun\\n")
out = nn.Linear(2, 1)(torch.from_numpy(np.ones((1, 2))))
with open("results.csv", "a") as file:
    file.write("row\\n")
torch.save({"w": 1}, "best.pt")
with sqlite3.connect("runs.db") as db:
    db.execute("create table if not exists runs (n)")
    db.execute("insert into runs values (1)")
"""


def test_what_comes_later_than_a_run_may_take_is_left_and_the_rest_is_mended(tmp_path):
    late = (
        f"{DISCARDED}for _ in range(40):\n    torch.ones(3).sum()\n    time.sleep(0.1)\ny = torch.ones(3)\ny.half()\n"
    )
    (tmp_path / "x.py").write_text(f"import time\n{late}")
    made = audit(tmp_path, "--fix", "--prove-limit", "0.5", "x.py")
    told = "no edit for DG103 at x.py:11: it comes later than a run that proves edits may take (--prove-limit, 0.5 s)"
    assert told in made.stdout.splitlines()
    assert (tmp_path / "x.py").read_text() == f"import time\n{late}".replace("\nx.half()", "\nx = x.half()")
    assert made.returncode == 1


def test_what_a_mended_program_writes_goes_to_a_copy_also_behind_the_line_that_ended_it_at_first(tmp_path):
    for name in ("tmp", "tree", "out", "spec", "result"):  # what stands beside the project may have any name
        (tmp_path / name).mkdir()
    project = tmp_path / "project"
    project.mkdir()
    for name in ("results.csv", "best.pt"):
        (project / name).write_text("old\n")
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    (project / "program.py").write_text(WRITES)
    before = tree(tmp_path)
    done = audit(project, "--diff", "program.py")
    assert "+out = nn.Linear(2, 1)(torch.from_numpy(np.ones((1, 2))).float())" in done.stdout, done.stdout
    assert (project / "log.txt").read_text() == "begun\n"
    after = tree(tmp_path)
    del after["project/log.txt"]
    assert after == before


def test_a_program_that_is_compiled_writes_to_its_cache(tmp_path):
    line = "__import__('os').makedirs(__import__('tempfile').gettempdir() + '/torchinductor_nobody', exist_ok=True)"
    (tmp_path / "program.py").write_text(f"{DISCARDED}{line}\n")
    words, how = command(tmp_path, "--diff", "program.py")
    done = subprocess.run(words, capture_output=True, check=False, timeout=300, **how)
    assert "1 edit, proven" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    "line",
    ["open({0!r}, 'a').write('x')", "torch.save(1, {0!r})", "import os; os.remove({0!r})"],
    ids=["open", "save", "remove"],
)
def test_a_program_that_writes_elsewhere_is_not_run_again(line, tmp_path):
    (tmp_path / "in").mkdir()
    other = tmp_path / "other"
    other.write_text("old")
    line = line.format(str(other))
    (tmp_path / "in" / "program.py").write_text(
        f"{DISCARDED}if __import__('os').environ.get('PWD') != {str(tmp_path)!r}:\n    {line}\n"
    )
    words, how = command(tmp_path / "in", "--diff", "program.py")
    how["env"]["PWD"] = str(tmp_path)  # the first run leaves it alone
    done = subprocess.run(words, capture_output=True, check=False, timeout=300, **how)
    assert f"no edits: it writes {other}, outside of its working tree" in done.stdout, done.stdout + done.stderr
    assert other.read_text() == "old"


def test_a_source_is_never_written_through_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "work" / ".venv" / "src").mkdir(parents=True)
    (tmp_path / "work" / ".venv" / "pyvenv.cfg").touch()
    (tmp_path / "work" / ".venv" / "src" / "mod.py").write_text("def f(x):\n    x.half()\n    return x\n")
    (tmp_path / "real" / "lib.py").write_text("def g(x):\n    x.half()\n    return x\n")
    (tmp_path / "work" / "lib.py").symlink_to(tmp_path / "real" / "lib.py")
    source = "import sys, torch\nsys.path.append('.venv/src')\nimport mod, lib\nx = torch.ones(2)\n"
    (tmp_path / "work" / "program.py").write_text(source + "print(mod.f(x), lib.g(x))\n")
    before = tree(tmp_path)
    done = audit(tmp_path / "work", "--diff", "program.py")
    assert "no edit for DG103" in done.stdout
    assert tree(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_end_in_the_midst_leaves_everything_as_it_was(number, tmp_path):
    (tmp_path / "program.py").write_text("import time\n" + DISCARDED + "time.sleep(3)\n")
    words, how = command(tmp_path, "--fix", "program.py", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    how["env"]["TMPDIR"] = str(tmp_path.parent)
    before = tree(tmp_path)
    process = subprocess.Popen(words, **how)
    while not list(tmp_path.parent.glob("dtypeguard-*/1/out")):
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert "interrupted: nothing was written" in out
        assert "no edit for" not in out
        assert "the search for edits was interrupted" in out
        assert process.returncode == 130
    ends = time.monotonic() + 10
    while list(tmp_path.parent.glob("dtypeguard-*")) and time.monotonic() < ends:
        time.sleep(0.1)
    assert list(tmp_path.parent.glob("dtypeguard-*")) == []
    assert tree(tmp_path) == before


USAGE = {
    "both": (
        ["--diff", "--fix", "x.py"],
        "--diff shows edits and writes nothing, --fix writes them: give one of the two",
    ),
    "no seconds": (["--diff", "--prove-limit", "-1", "x.py"], "-1 is no number of seconds"),
    "a limit of no runs": (
        ["--diff", "--no-prove", "--prove-limit", "9", "x.py"],
        "--no-prove runs nothing again, so --prove-limit has nothing to limit: give one of the two",
    ),
    "a limit of no search": (["--search-limit", "9", "x.py"], "--search-limit go with --diff and --fix"),
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


def test_the_report_comes_before_the_search_and_what_was_not_tried_in_time_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "program.py").write_text(DISCARDED)
    monkeypatch.chdir(tmp_path)
    mend = Mending.mend
    monkeypatch.setattr(Mending, "mend", lambda *given: print("-- search") or mend(*given))
    assert main(["audit", "--diff", "--search-limit", "0.001", "program.py"]) == 1
    report, _, edits = capsys.readouterr().out.partition("-- search")
    assert "warning[DG103]" in report
    assert "warning[DG103]" not in edits
    assert "not all was tried within 0.001 s (--search-limit) for DG103 at program.py:4\n" in edits


def test_sarif_carries_fixes_and_github_suggestions(tmp_path):
    (tmp_path / "program.py").write_text(DISCARDED)
    sarif = json.loads(audit(tmp_path, "--diff", "--no-prove", "--output-format", "sarif", "program.py").stdout)
    ((fix,),) = [result["fixes"] for result in sarif["runs"][0]["results"]]
    (change,) = fix["artifactChanges"]
    region = {"startLine": 4, "startColumn": 1, "endLine": 5, "endColumn": 1}
    assert change["replacements"] == [{"deletedRegion": region, "insertedContent": {"text": "x = x.half()\n"}}]
    shown = audit(tmp_path, "--diff", "--no-prove", "--output-format", "github", "program.py").stdout
    assert "%0A```suggestion%0Ax = x.half()%0A```" in shown


def test_mere_information_is_clean(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\n\nx = torch.ones(3)\nw = torch.ones(3, dtype=torch.float64)\n"
        "print((x * w).float().sum().item())\n"
    )
    done = audit(tmp_path, "--fix", "train.py")
    assert done.stdout.splitlines()[:2] == ["3.0", "Clean; 1 info not shown"]


def test_the_summary_counts_each_finding_once(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\n\nx = torch.full((4,), 300.0)\nx.half()\ny = x.half()\nprint((y * y).max().item())\n"
        "print((y * y).sum().item())\n"
    )
    done = audit(tmp_path, "--values", "--fix", "train.py")
    assert "1 warning fixed" in done.stdout
    assert "not shown" not in done.stdout


def test_a_script_in_the_folder_for_temporary_files_is_mended(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sources.py").write_text("raise SystemExit\n")
    (tmp_path / "program.py").write_text(DISCARDED)
    words, how = command(tmp_path, "--fix", "program.py")
    how["env"]["TMPDIR"] = str(tmp_path)
    done = subprocess.run(words, capture_output=True, check=False, timeout=300, **how)
    assert "1 edit written to program.py" in done.stdout, done.stdout + done.stderr
