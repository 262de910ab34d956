"""`python -m dtypeguard compare`: what is made is compared, and what cannot be is said as wrong usage."""

import json
import subprocess
import sys

import pytest
import warm

import dtypeguard
from dtypeguard.__main__ import main

SOURCE = """
import torch
from torch import nn

def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

def make_batch():
    return torch.linspace(-2, 2, 64).view(8, 8)

def make_both():
    return make_model(), make_batch()

def loss(out, batch):
    return out.square().sum() + batch.sum()

MODEL = make_model()

class Refuses(nn.Linear):
    def forward(self, x):
        return super().forward(x) @ torch.ones(16, 2)

def make_refusing():
    return Refuses(8, 16)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "made_here.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    sys.modules.pop("made_here", None)


def test_it_prints_the_result_and_writes_it(folder, capsys):
    arguments = ["made_here:make_model", "--batch", "made_here:make_batch", "--dtype", "bfloat16", "--keep", "1e-6"]
    assert main(["compare", *arguments, "--json", "result.json", "--html", "result.html"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("bfloat16 against float64: output error")
    assert "keep in float32: 0, 2" in text
    assert json.loads((folder / "result.json").read_text())["kept"]["names"] == ["0", "2"]
    assert "<title>" in (folder / "result.html").read_text()


CONVOLVED = """
class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Conv1d(32, 32, 1), nn.Linear(32, 32)

    def forward(self, x):
        return self.out(self.mix(x[..., None])[..., 0])

def make_convolved(): return Convolved(), torch.linspace(-1, 1, 96).view(3, 32)
"""


def test_a_warning_names_the_option_and_no_line_of_the_command(folder):
    (folder / "made_here.py").write_text(SOURCE + CONVOLVED)
    line = "compare made_here:make_convolved --format int8 --keep 0.5 --recipe torchao recipe.json"
    run = warm.run("dtypeguard", *line.split())
    said = "warning: --recipe torchao leaves out what is no nn.Linear: mix (Conv1d)"
    assert (run.returncode, run.stderr) == (0, f"python -m dtypeguard compare: {said}\n")


def test_a_tool_that_there_is_not_is_refused_before_layers_are_told(folder):
    (folder / "made_here.py").write_text(SOURCE + CONVOLVED)
    import made_here

    kept = dtypeguard.compare(*made_here.make_convolved(), format="int8").keep(error=0.5)
    with pytest.raises(ValueError, match=r"^to_recipe\('gptq'\): the tool must be one of "):
        kept.to_recipe("gptq")


def test_a_loss_is_compared(folder, capsys):
    assert main(["compare", "made_here:make_both", "--dtype", "bfloat16", "--loss", "made_here:loss"]) == 0
    assert "against float64: loss error" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["made_here:make_both"], ["made_here:MODEL", "--batch", "made_here:make_batch"]])
def test_a_model_may_come_with_its_batch_or_be_there(folder, capsys, arguments):
    assert main(["compare", *arguments, "--region", "float16"]) == 0
    assert capsys.readouterr().out.startswith("float16 autocast against float64")


@pytest.mark.parametrize(("error", "status"), [("0.5", 0), ("1e-9", 1)])
def test_a_larger_error_than_wanted_fails(folder, error, status):
    assert main(["compare", "made_here:make_both", "--dtype", "float16", "--max-error", error]) == status


def test_with_keep_the_error_is_that_of_what_is_kept(folder, capsys):
    both = ["compare", "made_here:make_both", "--dtype", "bfloat16", "--max-error", "1e-5"]
    assert main(both) == 1
    assert main([*both, "--keep", "1e-5"]) == 0
    assert main([*both, "--keep", "1e-15"]) == 1
    out = capsys.readouterr().out
    assert out.count("against float64: output error") == 3
    reasons = [line for line in out.splitlines() if line.startswith("exit status")]
    assert reasons[0] == "exit status 1: output error 0.42 % is above --max-error 0.001 %"
    assert reasons[1].startswith("exit status 1: --keep 1e-15 cannot be reached: ")


WRONG = {
    "a batch is missing: write --batch package.module:function": ["made_here:make_model", "--dtype", "bfloat16"],
    "there is no module 'nowhere'": ["nowhere:make", "--dtype", "bfloat16"],
    "made_here has no 'make_it'": ["made_here:make_it", "--dtype", "bfloat16"],
    "'made_here' names no function: write package.module:function": ["made_here", "--dtype", "bfloat16"],
    "--dtype bfloot16 is no dtype: did you mean 'bfloat16'?": ["made_here:make_both", "--dtype", "bfloot16"],
    "not allowed with argument": ["made_here:make_both", "--dtype", "bfloat16", "--region", "float16"],
    "the error must be positive": ["made_here:make_both", "--dtype", "bfloat16", "--keep", "0"],
    "there is no folder": ["made_here:make_both", "--dtype", "bfloat16", "--json", "no/where.json"],
    "Refuses does not run in bfloat16": [
        "made_here:make_refusing", "--batch", "made_here:make_batch", "--dtype", "bfloat16",
    ],
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_said(folder, capsys, text):
    with pytest.raises(SystemExit) as caught:
        main(["compare", *WRONG[text]])
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_it_runs_as_a_command(folder):
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "dtypeguard",
        "compare",
        "made_here:make_both",
        "--dtype",
        "float16",
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert "explained" in run.stdout
