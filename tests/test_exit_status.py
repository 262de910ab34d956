"""Every exit status but 0 has its reason: in the last line that is printed, or in the line of the error for 2."""

import json
import os
import re
import subprocess
import sys

import pytest
from support import reason

from dtypeguard.__main__ import main

MADE = """\
import torch
from torch import nn

class Refuses(nn.Linear):
    def forward(self, x):
        return super().forward(x) @ torch.ones(2)

def model(): torch.manual_seed(0); return nn.Linear(4, 2)
def half(): return model().bfloat16()
def net(): return nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 30), nn.Linear(30, 4))
def wide(): return torch.linspace(-1, 1, 96).view(3, 32)
def guarded(): import dtypeguard; return dtypeguard.guard(half(), mode="lenient")
def other(): torch.manual_seed(1); return nn.Linear(4, 2)
def both(): return half(), batch().bfloat16()
def wide_pair(): return model(), wide()
def nothing(): pass
def wants(x): return x
def refuses(): return Refuses(4, 2)
def batch(): return torch.linspace(-1, 1, 12).view(3, 4)
def pair(): return batch(), batch()
def squared(out): return out.square().mean()
def halved(): return batch().bfloat16()
def three(): return 3
def stopped(): raise KeyboardInterrupt
"""
VIOLATED = "the batch violates it: Linear.forward: argument `input` is float32, the module's parameters are bfloat16"
MISSING = "a batch is missing: write --batch package.module:function"
NO_STEPS = "neither 2^k (steps 1, 2, 4, 8 ...) nor a number of steps"
CASES = [
    ("describe made:half", 0, None),
    ("describe made:half --batch made:halved", 0, "The batch fulfils it."),
    ("describe made:both", 0, "The batch fulfils it."),
    ("describe made:half --batch made:batch", 1, VIOLATED),
    ("describe made:guarded --batch made:batch", 1,
     "the batch violates it: Linear.forward: `input` was cast from float32 to bfloat16 [DG012]"),  # by its own guard
    ("describe made:batch", 2, "made:batch returned a Tensor: return an nn.Module, or (model, batch)"),
    ("describe made:half --batch made:three", 2, "made:three returned an int as batch: return a tensor, a tuple of "
     "positional or a dict of keyword arguments; (value,) for one argument of another kind"),
    ("compare made:model --batch made:batch --dtype bfloat16 --max-error 0.5", 0, None),
    ("compare made:model --batch made:batch --dtype bfloat16 --max-error 1e-4", 1,
     r"output error 0\.\d+ % is above --max-error 0\.01 %"),
    ("compare made:model --batch made:batch --dtype bfloat16 --max-error 50%", 0, None),
    ("compare made:model --batch made:batch --dtype bfloat16 --max-error 0.01%", 1,
     r"output error 0\.\d+ % is above --max-error 0\.01 %"),
    ("compare made:model --batch made:batch --dtype bfloat16 --keep 1p", 2,
     "argument --keep: 1p is neither a number nor a percentage, as 1%"),
    ("compare made:net --batch made:wide --format int8 --loss made:squared --max-error 1e-4", 1,
     r"output error \S+ % is above --max-error 0\.01 %; that of the loss's gradients, \S+ %, is not asked"),
    ("compare made:model --batch made:batch --dtype bfloat16 --keep 1e-3 --max-error 1e-9", 1,
     r"output error \S+e-06 % with what is kept in float32 is above --max-error 1e-07 %"),
    ("compare made:model --batch made:batch --dtype bfloat16 --max-error -1", 2, "--max-error -1: no error is less "),
    ("compare made:model --batch made:batch --dtype int8", 2, "--dtype int8 is no dtype to compare: use "),
    ("compare made:model --batch made:batch --format nvfp4 --keep 1% --recipe nope x.json", 2,
     "--recipe nope: the tool must be one of torchao, "),
    ("compare made:model --batch made:batch --format nvfp4 --keep 1% --recipe torchoa x.json", 2,
     "--recipe torchoa: the tool must be one of torchao, transformers, transformer_engine, modelopt, llm-compressor "
     "(did you mean 'torchao'?)"),
    ("compare made:model --batch made:batch --dtype bfloat16 --keep 1", 2,
     "--keep 1 is 100 %, no goal: did you mean 1%?"),
    ("compare made:model --batch made:batch --format nvfp4 --keep 5", 2,
     "--keep 5 is 500 %, no goal: did you mean 5%?"),
    ("audit --select DG999 app.py", 2, "--select DG999 is no rule: use ids or names"),
    ("compare made:model --batch made:batch --dtype bfloat16 --keep -1", 2, "--keep -1: the error must be positive"),
    ("compare made:model --batch made:batch --dtype bfloat16 --keep 1e-15", 1,
     r"--keep 1e-15 cannot be reached: the whole model in float32 has an error of \S+ % against float64"),
    ("compare made:net --batch made:wide --format mxfp8 --bits 8", 2,
     "--bits 8: the cheapest choice has 20.4 bits, as no format takes 1 (30 outputs, not divisible by 16), "),
    ("compare made:net --batch made:wide --format mxfp8 --bits 8 --keep 1%", 2,
     "argument --keep: not allowed with argument --bits"),
    ("compare made:net --batch made:wide --format int3", 2, "--format int3 is unknown (did you mean 'int8'?)"),
    ("diff made:model app.py --batch made:batch", 2, "app.py is cut, or no capture: write one with"),
    ("diff made:model made:refuses --batch made:batch", 2, "the outputs have nothing in common"),
    ("compare made:model --dtype float16,bfloat16", 2,
     "--dtype float16,bfloat16: compare takes one dtype, so run it for each"),
    ("compare made:model --batch made:batch --region float16,bfloat16", 2,
     "--region float16,bfloat16: compare takes one dtype, so run it for each"),
    ("compare made:model --batch made:batch --dytpe bfloat16", 2,
     "unrecognized arguments: --dytpe (did you mean '--dtype'?)"),
    ("compare made:refuses --batch made:batch --dtype bfloat16", 2, "Refuses does not run in bfloat16"),
    ("compare made:model --dtype bfloat16", 2, f"{MISSING}, or have made:model return (model, batch)"),
    ("dryrun made:refuses --batch made:batch --require float32", 0,
     "exit status 0: Refuses runs in float32, which --require names"),
    ("dryrun made:refuses --batch made:batch --require float32,bfloat16", 1,
     "Refuses does not run in bfloat16, which --require names"),
    ("dryrun made:model --batch made:batch --device cpu --require fp32,bfloat16", 0,
     "exit status 0: Linear runs in fp32, bfloat16, which --require names"),
    ("dryrun made:model --batch made:wide", 2, "Linear does not run on the batch as it is: parameters float32, inputs "
     "float32, no autocast; RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
    ("dryrun made:model --batch made:batch --device gpu", 2, "--device gpu "),
    ("dryrun made:model --batch made:batch --device meta", 2, "--device meta: there are no kernels on meta"),
    ("dryrun made:gone --require float16 --dtype float32", 2,
     "--require float16: the model is run in float32 only: add float16 to --dtype"),
    ("dryrun made:gone --require int8", 2,
     '--require int8: no cell has int8: dryrun asks floating dtypes, bfloat16, float16, float32, float64; '
     'compare(model, batch, format="int8") measures what its weights cost'),
    ("dryrun made:gone --require float16 --region bfloat16", 2,
     "--require asks about the model without a region: add none to --region"),
    ("dryrun made:gone --region fp64", 2, "--region fp64 is none of none, float16, bfloat16"),
    ("dryrun made:gone --region nine", 2, "--region nine is no dtype: "),
    ("dryrun made:model --batch made:batch --dtype int8", 2, "--dtype int8 is none of bfloat16, "),
    ("dryrun made:refuses", 2, "a batch is missing: write --batch package.module:function, which returns x, or "),
    ("dryrun made:batch", 2, "made:batch returned a Tensor: return an nn.Module, or (model, batch)"),
    ("diff made:model made:model --batch made:batch", 0, None),
    ("diff made:model made:model --bacth made:batch", 2,
     "unrecognized arguments: --bacth made:batch (did you mean '--batch'?)"),
    ("diff made:model made:other --batch made:batch", 1, "another function"),
    ("describe made:model --batch made:pair", 2, "Linear.forward(input: torch.Tensor) -> torch.Tensor does "
     "not take this batch: too many positional arguments"),
    ("diff made:model --batch made:batch", 2, "diff compares two programs: name two, or one and --against PATH"),
    ("diff made:model --batch made:batch --against gone.st", 2, "cannot read gone.st: no such file or directory"),
    ("manifest --check dtypes.lock made:model", 0, None),
    ("manifest --check dtypes.lock made:half", 1, "made:half differs from dtypes.lock"),
    ("manifest --check gone.lock made:half", 2, "cannot read gone.lock: no such file or directory"),
    ("dryrun made:both", 0, None),
    ("diff made:both made:both", 0, None),
    ("diff made:half made:both", 0, None),
    ("manifest made:both", 0, None),
    ("compare made:wide_pair --batch made:batch --dtype bfloat16", 0, None),
    ("diff made:half made:half", 2, f"{MISSING}, or have made:half return (model, batch)"),
    ("compare made:three --batch made:batch --dtype bfloat16", 2,
     "made:three returned an int: return an nn.Module, or (model, batch)"),
    ("diff made:model made:nothing --batch made:batch", 2,
     "made:nothing returned None: return an nn.Module or a function, or (model, batch)"),
    ("manifest made:nothing", 2, "made:nothing returned None: return an nn.Module or a state_dict, or (model, batch)"),
    ("compare made:model --batch made:nothing --dtype bfloat16", 2, "made:nothing returned None as batch: return a "
     "tensor, a tuple of positional or a dict of keyword arguments, or a list of such batches; "),
    ("manifest made:model --batch made:nothing", 2, "made:nothing returned None as batch: return a tensor, "),
    ("compare made:wants --batch made:batch --dtype bfloat16", 2,
     "made:wants raised TypeError: wants() missing 1 required positional argument: 'x'"),
    ("audit --every 3 app.py", 2, "--every 3 says at which steps values are looked at: pass --values too"),
    ("audit --values --every often app.py", 2, f"argument --every: often is {NO_STEPS}"),
    ("audit --every 0 app.py", 2, f"argument --every: 0 is {NO_STEPS}"),
    ("audit --valeus app.py", 2, "unrecognized arguments: --valeus (did you mean '--values'?)"),
    ("audti app.py", 2, "argument command: invalid choice: 'audti' (did you mean 'audit'?) (choose from "),
    ("audit", 2, "the following arguments are required: program"),
    ("compare made.py:model --dtype bfloat16", 2, "made.py is a file: write the name of its module, made:model"),
    ("dryrun ./made:model", 2, "./made names no module: write made:model"),
    ("dryrun ../made:model", 2, "../made names no module: write made:model, in the folder .."),
    ("describe made:model --batch .made:batch", 2, ".made names no module: write made:batch"),
    ("compare mad:model --dtype bfloat16", 2, "there is no module 'mad' (did you mean 'made'?)"),
    ("compare made:modle --dtype bfloat16", 2, "made has no 'modle' (did you mean 'model'?)"),
    ("audit -m mad", 2, "there is no module 'mad' (did you mean 'made'?)"),
    ("audit -m made.mdel", 2, "there is no module 'made.mdel'"),
    ("describe made:stopped", 130, None),
    ("compare made:stopped --dtype bfloat16", 130, None),
    ("dryrun made:stopped", 130, None),
    ("diff made:stopped made:model --batch made:batch", 130, None),
    ("manifest made:stopped", 130, None),
    ("audit gone.py", 2, "there is no script gone.py"),
    ("rules DG3090", 2, "'DG3090' is no rule (did you mean 'DG309'?)"),
    ("rules thrown-away-cast", 2, "'thrown-away-cast' is no rule (did you mean 'discarded-cast'?)"),
    ("completion tcsh", 2, "argument shell: invalid choice: 'tcsh' (choose from "),
    ("", 2, "the following arguments are required: command (one of audit, compare, "),
]  # fmt: skip


# What the user's own code raises, wherever it stands.
RAISES = """\
from made import *

class Broken(nn.Linear):
    def forward(self, x):
        raise KINDS[self.kind]("of mine")

KINDS = ValueError, TypeError, RuntimeError, KeyError
def net(kind): net = Broken(4, 2); net.kind = kind; return net
def value(): return net(0)
def kind(): return net(1)
def run(): return net(2)
def key(): return net(3)
def boom(): raise TypeError("of mine")
def loss(out): raise ValueError("of mine")
"""
RAISING = [
    *((f"{command} raises:boom{more}", "raises:boom raised TypeError: of mine") for command, more in (
        ("compare", " --dtype bfloat16"), ("describe", ""), ("dryrun", ""), ("manifest", ""),
        ("diff made:model", " --batch made:batch"), ("describe made:model --batch", ""),
        ("compare made:model --dtype bfloat16 --batch", ""), ("dryrun made:model --batch", ""),
        ("diff made:model made:model --batch", ""), ("manifest made:model --batch", ""),
    )),
    *((f"{command} raises:{net} --batch made:batch", why + f"{error}: .?of mine.?")
      for net, error in (("value", "ValueError"), ("kind", "TypeError"), ("run", "RuntimeError"), ("key", "KeyError"))
      for command, why in (
          ("compare --dtype bfloat16",
           "(Broken does not run on the batch as it is, before any conversion: )?"),
          ("describe", ""), ("dryrun", ""), ("manifest", r"raises:\w+ does not run on the batch made:batch: "),
          ("diff made:model", r"raises:\w+ does not run on the batch: "),
      )),
    ("compare made:model --batch made:batch --dtype bfloat16 --loss raises:loss",
     "the loss does not take what Linear returns for the batch: ValueError: of mine"),
    ("compare made:net --batch made:wide --format mxfp8 --loss raises:loss", "ValueError: of mine"),
    ("diff made:model made:model --batch made:batch --loss raises:loss",
     "the loss does not take what made:model returns: ValueError: of mine"),
    ("describe broken:net", "broken raised NameError: name 'undefined' is not defined"),
    ("compare broken:net --dtype bfloat16", "broken raised NameError: name 'undefined' is not defined"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "made.py").write_text(MADE)
    (tmp_path / "app.py").write_text("import torch\n")
    (tmp_path / "raises.py").write_text(RAISES)
    (tmp_path / "broken.py").write_text("undefined\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", ["-m"])
    yield tmp_path
    for name in ("made", "raises"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("line", "status", "why"), CASES)
def test_the_last_line_says_why(folder, capsys, line, status, why):
    if "dtypes.lock" in line:
        assert main(["manifest", "made:model", "-o", "dtypes.lock"]) == 0
    try:
        ended = main(line.split())
    except SystemExit as stop:
        ended = stop.code
    out, err = capsys.readouterr()
    assert ended == status
    if status == 2:
        assert reason(err).startswith(why)
    elif status == 130:
        assert out.splitlines()[-1] == "exit status 130: interrupted"
    elif status == 1:
        last = out.splitlines()[-1].removeprefix("exit status 1: ")
        assert last == why or re.fullmatch(why, last)
    else:
        assert (out + err).count("exit status") == (why or "").count("exit status")
        assert why is None or out.splitlines()[-1] == why


COMPARED = "made:model --batch made:batch --dtype bfloat16"
SHOWN = {
    "describe": ("made:half", "made:half --batch made:batch"),
    "compare": (f"{COMPARED} --max-error 1", f"{COMPARED} --max-error 1e-9"),
    "dryrun": ("made:model --batch made:batch", "made:refuses --batch made:batch --require bfloat16"),
    "diff": ("made:model made:model --batch made:batch", "made:model made:other --batch made:batch"),
    "manifest": ("--check dtypes.lock made:model", "--check dtypes.lock made:half"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_where_a_result_goes_is_said_alike_in_all_commands(folder, capsys, name):
    assert main(["manifest", "made:model", "-o", "dtypes.lock"]) == 0
    passes, fails = (f"{name} {line}".split() for line in SHOWN[name])

    def printed(*words):
        status = main([*words])
        return status, capsys.readouterr().out

    status, text = printed(*passes)
    assert (status, bool(text)) == (0, True)
    assert printed(*passes, "-q") == (0, "")
    assert name != "dryrun" or printed(*passes, "--require", "bfloat16", "-q") == (0, "")
    assert printed(*passes, "-o", "result.txt") == (0, "")
    assert (folder / "result.txt").read_text().splitlines() == text.splitlines()
    assert json.loads(printed(*passes, "--json", "-")[1])["tool"] == "dtypeguard"
    assert name == "manifest" or printed(*passes, "-o", "result.html") == (0, "")
    assert name == "manifest" or (folder / "result.html").read_text().startswith("<!doctype html>")
    status, text = printed(*fails, "-q")
    assert (status, len(text.splitlines()) > 1) == (1, True)


@pytest.mark.parametrize(("line", "why"), RAISING)
def test_what_the_users_own_code_raises_is_shown_as_python_shows_it(folder, capsys, monkeypatch, line, why):
    monkeypatch.setattr("sys.excepthook", sys.__excepthook__)  # torch.distributed puts the rank before each line
    assert main(line.split()) == 1
    out, err = capsys.readouterr()
    assert re.fullmatch(why, out.splitlines()[-1].removeprefix("exit status 1: "))
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.count("Traceback") == 1
    assert re.search(r'File ".*(raises|broken)\.py"', err)
    assert not re.search(r'File ".*dtypeguard/', err)  # frames of ours


def test_what_is_wrong_is_said_first_and_then_what_belongs_to_it_and_where_help_is(folder, capsys):
    with pytest.raises(SystemExit):
        main("diff made:model made:model --batch made:wide".split())
    first, *details, where = capsys.readouterr().err.splitlines()
    assert where == "see: python -m dtypeguard diff --help"
    assert "does not run on the batch" in first
    assert re.fullmatch(r"  docs +https://\S+", "\n".join(details))


def test_a_description_is_written_and_the_violation_is_shown(folder, capsys):
    assert main("describe made:half --batch made:batch --html d.html --json d.json".split()) == 1
    out = capsys.readouterr().out
    assert out.startswith("Linear is not guarded. guard(model) checks its forward.\n")
    assert "\n  expected   bfloat16 like weight (bf16[2,4] on cpu)\n" in out
    assert "called at" not in out  # that is the command itself
    assert '"kind": "describe"' in (folder / "d.json").read_text()
    assert "<title>" in (folder / "d.html").read_text()


@pytest.mark.parametrize(
    ("command", "unbuffered", "both"),
    [
        ("rules", "", False),
        ("--help", "", False),
        ("describe made:half --batch made:batch", "", False),
        ("describe made:half --batch made:batch", "1", True),
        pytest.param("describe made:stopped", "1", False, marks=pytest.mark.slow),
        pytest.param("describe made:half --batch made:batch --json -", "", True, marks=pytest.mark.slow),
        pytest.param("audit --select DG999 app.py", "", True, marks=pytest.mark.slow),
    ],
)
def test_a_reader_that_has_gone(folder, command, unbuffered, both):
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        [sys.executable, "-m", "dtypeguard", *command.split()],
        stdout=writer,
        stderr=writer if both else subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    os.close(writer)
    assert (run.returncode, run.stderr or "") == (141, "")
