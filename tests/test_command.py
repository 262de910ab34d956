"""`python -m dtypeguard`: programs run as Python runs them, findings fail, wrong usage is said beforehand."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import warm
from support import reason

import dtypeguard
from dtypeguard.__main__ import main
from dtypeguard._core.base.codes import MISTAKES
from dtypeguard._engine.watch.rule import RULES

ROOT = Path(__file__).resolve().parents[1]

BAD = (
    "import torch\n\ndef step(x):\n    x.to(torch.bfloat16)\n    return x\n\nstep(torch.ones(3))\n"  # DG103, in line 4
)
GOOD = "import torch\n\nprint(torch.ones(3).sum().item())\n"
REPORT = re.compile(r"^audit report: .*$", re.MULTILINE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to work in; `sys` is put back afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["-m"])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def command(folder, capsys):
    """Runs a command in this process: status, stdout, stderr."""

    def run(*arguments):
        try:
            status = main([*map(str, arguments)])
        except SystemExit as stop:
            status = stop.code
        return (status, *capsys.readouterr())

    return run


@pytest.fixture
def write(folder):
    def to(path, text):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return to


def python(*arguments):
    run = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    return run.returncode, run.stdout, run.stderr


# --- programs, side by side with Python

STATE = """
'''A docstring.'''
import sys
print(__name__, __file__, __package__, __doc__, __cached__, type(__loader__).__name__, type(__builtins__).__name__)
print(__spec__ and (__spec__.name, __spec__.origin), sys.argv, sys.path[0], globals().get('__annotations__'))
print(sorted(globals()))
import __main__
print(__main__.__dict__ is globals(), sys.modules["__main__"] is __main__)
"""
PROGRAMS = {
    "nothing": "",
    "state": STATE,
    "main": "def main(): print('ran')\nif __name__ == '__main__': main()",
    "status 3": "import sys; sys.exit(3)",
    "status 0": "import sys; print('a'); sys.exit(0); print('b')",
    "status text": "import sys; sys.exit('no such thing')",
    "status object": "import sys; sys.exit(['a', 1])",
    "raises": "def f():\n    g()\ndef g():\n    raise ValueError('no')\nf()",
    "raises with a cause": "try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('x') from e",
    "raises a group": "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])",
    "raises in an import": "import broken",
    "own excepthook": "import sys\nsys.excepthook = lambda *e: print('mine', e[0].__name__)\n1 / 0",
    "syntax error": "x = 1\ndef f(:\n    pass",
    "Latin-1": b"# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n",
    "BOM": b"\xef\xbb\xbfprint('bom')\n",
    "sibling": "import helper; print(helper.NAME, helper.__file__)",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "getsource": "import inspect\ndef f(): return 1\nprint(inspect.getsource(f))",
    "dataclass": "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: 'int' = 1\nprint(A())",
    "arguments": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--json')\n"
                 "p.add_argument('rest', nargs='*')\n"
                 "print(p.parse_args())",
    "changes its folder": "import os\nos.chdir('/')\nprint(os.getcwd())",
    "changes stdout": "import sys, io\nsys.stdout = io.StringIO()\nprint('lost')",
    "deletes itself": "import os\nos.remove(__file__)\nprint('gone')",
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
@pytest.mark.filterwarnings("ignore::ImportWarning")
def test_a_script_runs_as_under_python(command, write, program):
    write("helper.py", "NAME = 'the helper'")
    write("sub/helper.py", "NAME = 'the helper beside it'")
    write("sub/broken.py", "def f(): return 1 / 0\nf()")
    arguments = "sub/app.py", "--json", "a b", "--", "-m", "x"
    write("sub/app.py", program)
    status, out, err = python(*arguments)
    write("sub/app.py", program)  # one deletes it
    mine = command("audit", *arguments)
    assert mine[0] == status
    assert mine[1].startswith(out)
    assert mine[2] == err
    assert len(REPORT.findall(mine[1])) == 1


@pytest.mark.parametrize("option", [(), ("-m",)])
@pytest.mark.parametrize("data", [b"x = 1\0", b"x = '\xe9'\n", b"# -*- coding: nonsense -*-\n", b"def f(:\n    pass"])
def test_what_is_no_python(command, write, data, option):
    write("app.py", data)
    status, out, err = command("audit", *option, "app" if option else "app.py")
    assert status == 1
    # before 3.11.4 `compile` has another error for null bytes
    known = b"\0" in data and sys.version_info < (3, 11, 4)
    assert err.splitlines()[-1].startswith("ValueError: source code string" if known else "SyntaxError: ")
    assert "_command.py" not in err
    assert REPORT.search(out)


def test_a_comment_in_another_encoding_is_refused_as_by_python(command, write):
    write("app.py", b"import torch\n# \xe9\n")
    status, _, err = python("app.py")
    mine = command("audit", "app.py")
    assert (mine[0], mine[2]) == (status, err)
    assert status == 1


@pytest.mark.parametrize(
    "name", ["app", "app.txt", "app.pyw", "a b.py", "-app.py", "äpp.py", "link.py", "./app", "deep/../app"]
)
def test_names_of_scripts(command, write, folder, name):
    write(name.removeprefix("deep/../"), STATE)
    (folder / "deep").mkdir()
    if name == "link.py":
        write("deep/real.py", STATE)
        write("deep/helper.py", "")
        os.remove("link.py")
        os.symlink("deep/real.py", "link.py")
    arguments = ["--", name] if name.startswith("-") else [name]
    status, out, err = python(*([f"./{name}"] if name.startswith("-") else [name]))
    mine = command("audit", *arguments)
    if name.startswith("-"):
        assert mine[0] == 0
    else:
        assert (mine[0], mine[2]) == (status, err)
        assert mine[1].startswith(out)


PACKAGE = {
    "pkg/__init__.py": "print('package')",
    "pkg/__main__.py": STATE + "from . import part; from .deep import leaf",
    "pkg/part.py": "print('part', __name__)",
    "pkg/run.py": STATE + "from . import part\nfrom pkg import part as again\nprint(part is again)",
    "pkg/deep/__init__.py": "",
    "pkg/deep/leaf.py": "from .. import part\nprint(__name__, __package__)",
    "pkg/exits.py": "import sys; sys.exit(7)",
    "pkg/raises.py": "from .part import nothing",
    "bad/__init__.py": "import no_such_thing_at_all",
    "bad/run.py": "",
    "space/run.py": STATE,
    "alone.py": STATE,
}


@pytest.mark.parametrize("module", ["pkg", "pkg.run", "pkg.deep.leaf", "pkg.exits", "pkg.raises", "space.run", "alone"])
def test_a_module_runs_as_under_python(command, write, module):
    for path, text in PACKAGE.items():
        write(path, text)
    status, out, err = python("-m", module, "--lr", "1e-3", "-m", "--")
    mine = command("audit", "-m", module, "--lr", "1e-3", "-m", "--")
    assert mine[0] == status
    assert mine[1].startswith(out)
    frames = re.compile(r'  File "<frozen runpy>".*\n')  # Python shows its own way in
    assert mine[2] == frames.sub("", err)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("no_such_module", "there is no module 'no_such_module'"),
        ("pkg.nothing", "there is no module 'pkg.nothing'"),
        ("pkg.part.deeper", "there is no module 'pkg.part.deeper'"),
        ("pkg.deep", "the package pkg.deep cannot be run: it has no __main__"),
        ("space", "the package space cannot be run: it has no __main__"),
        ("no_such.module", "there is no module 'no_such.module'"),
        (".pkg", "there is no module '.pkg' (did you mean 'pkg'?)"),
        ("", "there is no module ''"),
        ("pkg..run", "there is no module 'pkg..run'"),
        ("alone.py", "-m takes a module, as in -m alone, not the file alone.py"),
        ("pkg/run.py", "-m takes a module, as in -m pkg.run, not the file pkg/run.py"),
        ("sys", "cannot run sys: it holds no Python code"),
    ],
)
def test_modules_that_cannot_be_run(command, write, module, message):
    for path, text in PACKAGE.items():
        write(path, text)
    status, out, err = command("audit", "-m", module)
    assert status == 2
    assert reason(err) == message
    assert "Traceback" not in err
    assert not REPORT.search(out)


@pytest.mark.parametrize("archive", ["app", "app.zip"])
def test_a_folder_or_an_archive_with_a_main(command, write, folder, archive):
    write("src/__main__.py", STATE + "import helper")
    write("src/helper.py", "print('helper', __file__)")
    if archive == "app":
        (folder / "src").rename("app")
    else:
        with zipfile.ZipFile("app.zip", "w") as file:
            for name in ("__main__.py", "helper.py"):
                file.write(f"src/{name}", name)
    status, out, err = python(archive, "a")
    mine = command("audit", archive, "a")
    assert (mine[0], mine[2]) == (status, err)
    assert mine[1].startswith(out)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no/such/script.py", "there is no script no/such/script.py"),
        ("", "there is no script "),
        ("empty", "cannot run empty: there is no __main__ in it"),
        ("alone", "there is no script alone (did you mean 'alone.py'?); for a module: -m alone"),
    ],
)
def test_scripts_that_are_not_there(command, write, folder, path, message):
    (folder / "empty").mkdir()
    write("alone.py", "")
    status, out, err = command("audit", path)
    assert (status, out) == (2, "")
    assert reason(err) == message


def test_a_script_that_cannot_be_read(command, write, monkeypatch):
    def open_code(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("dtypeguard._tools.audit.command.io.open_code", open_code)
    status, _, err = command("audit", write("app.py", GOOD))
    assert (status, reason(err)) == (2, "cannot read app.py: permission denied")


# --- verdicts


@pytest.mark.parametrize(
    ("program", "options", "status"),
    [
        (GOOD, [], 0),
        (BAD, [], 1),
        (BAD, ["--fail-on", "never"], 0),
        (BAD, ["--fail-on", "error"], 0),
        (BAD, ["--fail-on", "warning"], 1),
        (BAD, ["--fail-on=info"], 1),
        (BAD, ["--ignore", "DG103"], 0),
        (BAD, ["--ignore", "DG2,DG103,"], 0),
        (BAD, ["--ignore", "DG2", "--ignore", "DG103"], 0),
        (BAD, ["--select", "DG2"], 0),
        (BAD, ["--select", "DG1"], 1),
        (BAD, ["--select", "DG1", "--ignore", "DG103"], 0),
        (BAD + "raise SystemExit(5)", [], 5),  # the program's own status comes first
        (BAD + "1 / 0", ["--fail-on", "never"], 1),
        (GOOD + "1 / 0", [], 1),
        (BAD.replace("float16)", "float16)  # dtypeguard: ignore[DG103]"), [], 0),
    ],
)
def test_status(command, write, program, options, status):
    code, out, _ = command("audit", *options, write("app.py", program))
    assert code == status
    assert REPORT.search(out)
    assert "FAIL: " not in out or status


def test_pyproject_counts_and_arguments_come_first(command, write):
    write("app.py", BAD)
    write("pyproject.toml", "[tool.dtypeguard]\nignore = ['DG1']\n")
    assert command("audit", "app.py")[0] == 0
    assert command("audit", "--select", "DG1", "app.py")[0] == 1
    write("pyproject.toml", "[tool.dtypeguard]\nper-file-ignores = {'app.py' = ['DG1']}\n")
    assert command("audit", "--select", "DG1", "app.py")[0] == 0
    write("pyproject.toml", "[tool.dtypeguard]\nseverity = 'error'\n")
    assert command("audit", "app.py")[0] == 0


def test_the_report_of_a_program_that_raises(command, write):
    status, out, err = command("audit", write("app.py", BAD + "raise ValueError('no')"))
    assert status == 1
    assert "DG103" in out
    assert err.splitlines()[-1] == "ValueError: no"
    assert "dtypeguard" not in err


TRACEBACKS = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(3, 2))
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, g): return g @ torch.ones(7)
def f():
    try:
        torch.ones(3) @ torch.ones(4)
    except RuntimeError:
        try:
            net(torch.ones(2, 4, requires_grad=True))
        except RuntimeError:
            Double.apply(torch.ones(3, requires_grad=True)).sum().backward()
f()
"""


def test_a_traceback_out_of_torch_has_no_frames_of_ours(command, write):
    write("app.py", TRACEBACKS)
    assert command("audit", "app.py")[2] == python("app.py")[2]


ENDED = """
import os, signal, time
child = os.fork()
if not child:
    time.sleep(9)
    os._exit(0)
os.kill(child, signal.SIGTERM)
print("child", os.waitpid(child, 0)[1])
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(9)
finally:
    print("cleaned up")
"""


def test_a_program_that_a_scheduler_ends(write, folder):
    """What it has forked is ended as it would be without an audit."""
    run = audit(write("app.py", BAD + ENDED))
    assert run.returncode == 143
    assert run.stdout.splitlines()[:2] == ["child 15", "cleaned up"]
    assert "DG103" in run.stdout


def test_an_interrupt(command, write):
    status, out, err = command("audit", write("app.py", BAD + "raise KeyboardInterrupt"))
    assert (status, err.splitlines()[-1]) == (130, "KeyboardInterrupt")
    assert "DG103" in out


# --- files


def test_json_and_html(command, write, folder):
    write("app.py", BAD + "import os; os.makedirs('elsewhere'); os.chdir('elsewhere')")
    assert command("audit", "--json", "report.json", "--html", "report.html", "app.py")[0] == 1
    data = json.loads((folder / "report.json").read_text())
    assert [(found["rule"], found["line"]) for found in data["findings"]] == [("DG103", 4)]
    assert (data["program"], data["error"]) == ("app.py", None)
    assert "DG103" in (folder / "report.html").read_text()


CHATTY = (
    BAD
    + """
import atexit, os, subprocess, sys
atexit.register(print, "at exit")
print("printed")
os.write(1, b"past Python\\n")
subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
"""
)


def test_json_on_standard_output_stands_there_alone(write, folder):
    write("app.py", CHATTY)
    status, out, err = python("-m", "dtypeguard", "audit", "--json", "-", "app.py")
    assert status == 1
    assert [found["rule"] for found in json.loads(out)["findings"]] == ["DG103"]
    assert all(text in err for text in ("printed", "past Python", "by a child", "at exit", "audit report: 1 warning"))
    assert not (folder / "-").exists()


def test_json_where_standard_output_is_no_file(command, write):
    status, out, err = command("audit", "--json", "-", write("app.py", BAD + "print('printed')"))
    assert (status, len(json.loads(out)["findings"])) == (1, 1)
    assert err.startswith("printed\n")
    assert "audit report: 1 warning" in err


def test_formats_for_machines(command, write, folder, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: 1 / 0)  # a checkout that is not installed
    write("app.py", BAD)
    status, out, _ = command("audit", "--output-format", "github", "app.py")
    (line,) = re.findall(r"^::.*", out, re.M)
    place = "file=app.py,line=4,col=5,endColumn=24,title=DG103 discarded-cast"
    assert (status, line.split("::")[1]) == (1, f"warning {place}")
    assert "%0Ahelp: keep the result" in line
    status, out, err = command("audit", "--output-format", "sarif", "app.py")
    (run,) = json.loads(out)["runs"]
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert (status, result["ruleId"], result["level"]) == (1, "DG103", "warning")
    assert place["artifactLocation"]["uri"] == "app.py"
    region = place["region"]
    assert region["snippet"]["text"][region["startColumn"] - 1 : region["endColumn"] - 1] == "x.to(torch.bfloat16)"
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "DG103"
    assert run["tool"]["driver"]["version"] == dtypeguard.__version__  # not of what is installed, if anything is
    assert err.endswith("exit status 1: the audit found 1 warning\n")
    assert command("audit", "--output", "report.json", "app.py")[0] == 1  # the ending says what it is
    assert json.loads((folder / "report.json").read_text())["verdict"] == "FAIL: 1 warning, 1 line to change"
    assert command("audit", "-o", "report.html", "app.py")[0] == 1
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert command("audit", "-o", "report.sarif", "app.py")[0] == 1
    assert json.loads((folder / "report.sarif").read_text())["runs"][0]["results"][0]["ruleId"] == "DG103"


DIVISION = "ZeroDivisionError: division by zero"
WHY = [
    ([], BAD, "exit status 1: the audit found 1 warning"),
    (["--fail-on", "error"], BAD, "exit status 0: nothing of severity error or worse"),
    (["--fail-on", "never"], BAD, "exit status 0: the audit found 1 warning, --fail-on never"),
    ([], GOOD, "exit status 0: nothing of severity warning or worse"),
    ([], GOOD + "raise SystemExit(3)", "exit status 3: the program's own"),
    ([], BAD + "raise SystemExit(3)", "exit status 3: the program's own; the audit found 1 warning"),
    ([], BAD + "1 / 0", f"exit status 1: the program's own, {DIVISION}; the audit found 1 warning"),
    ([], "raise KeyboardInterrupt", "exit status 130: the program's own, interrupted"),
    (["--quiet"], BAD, "exit status 1: the audit found 1 warning"),
    (["--output-format", "github"], BAD, "exit status 1: the audit found 1 warning"),
]


EDIT = "next: change app.py:4 (removes 1 warning); --diff looks for an edit; or accept: --write-baseline"
TWO = BAD + "\ndef other(x):\n    x.to(torch.float16)\n\nother(torch.ones(3))\n"
ANGLES = """\
import torch
rates = torch.linspace(0, 1, 8).exp()
for _ in range(2):
    angles = torch.arange(1000).to(torch.bfloat16)[:, None] * rates
print(angles.sin().sum().item() > 0)
"""
NEXT = [
    ([], ANGLES, f"{EDIT.replace('1 warning', '1 of 2')} known.json"),
    ([], BAD, f"{EDIT} known.json"),
    ([], TWO, f"{EDIT.replace('1 warning', '1 of 2')} known.json"),
    (["--diff"], BAD, "next: --fix writes 1 safe edit"),
    ([], GOOD, "next: --values looks at what dtypes do to the values"),
]


@pytest.mark.parametrize(("options", "program", "line"), NEXT)
def test_the_line_before_the_last_says_what_to_do_next(command, write, options, program, line):
    _, out, _ = command("audit", *options, write("app.py", program))
    assert out.splitlines()[-2] == line


@pytest.mark.parametrize(("options", "program", "last"), WHY)
def test_the_last_line_says_why_the_exit_status_is_what_it_is(command, write, options, program, last):
    status, out, _ = command("audit", *options, write("app.py", program))
    assert out.splitlines()[-1] == last
    assert str(status) in last


RUNNERS = [
    ("pytest", "def test(): assert 0", "exit status 1: pytest: tests failed"),
    ("pytest", BAD + "def test(): step(torch.ones(3)); assert 0", "1: pytest: tests failed; the audit found 1 warning"),
    ("pytest", BAD + "def test(): pass", "exit status 1: the audit found 1 warning"),
    ("pytest", "nothing = 1", "exit status 5: pytest: no tests were collected"),
    ("pytest", "import gone", "exit status 2: pytest: interrupted, or errors in the collection"),
    (
        "unittest",
        "import unittest\nclass A(unittest.TestCase):\n  def test(self): self.fail()",
        "1: unittest: tests failed",
    ),
]


@pytest.mark.parametrize(("runner", "source", "last"), RUNNERS)
def test_failed_tests_are_told_apart_from_what_the_audit_found(write, runner, source, last, folder):
    write("test_app.py", source)
    write("pytest.ini", "[pytest]\nfilterwarnings = error\n")  # that we are imported before is no warning of the suite
    out = audit("-m", runner, "test_app.py", cwd=folder).stdout
    assert out.splitlines()[-1].endswith(last)


LATE = "{0}: given to the program, as it stands behind it; an option of audit stands before {1}"


@pytest.mark.parametrize(
    ("arguments", "source", "said"),
    [
        (["app.py", "--values"], GOOD, LATE.format("--values", "app.py")),
        (["app.py", "x", "--json=a.json", "--values", "--json=b"], GOOD, LATE.format("--json --values", "app.py")),
        (["-m", "app", "--no-casts"], GOOD, LATE.format("--no-casts", "-m app")),
        (["--values", "app.py", "--values"], GOOD, LATE.format("--values", "app.py")),
        (["app.py", "--epochs", "-q", "values"], GOOD, None),  # none of ours, or another's too
        (["app.py", "--json", "x"], "import argparse\np = argparse.ArgumentParser(); p.add_argument('--json')", None),
        (
            ["app.py", "--diff"],
            GOOD + "import dataclasses\n@dataclasses.dataclass\nclass A:\n    diff: bool = False\n",
            None,
        ),
        (["app.py", "--", "--diff"], GOOD, None),
    ],
)
def test_an_option_of_ours_behind_the_program_is_told_once(command, write, arguments, source, said):
    write("app.py", source)
    lines = command("audit", *arguments)[1].splitlines()
    assert [line for line in lines if "given to the program" in line] == ([] if said is None else [said])


def test_edits_are_asked_for_behind_a_script_too_that_has_no_such_option(command, write, folder):
    write("app.py", BAD + "import sys\nassert sys.argv[1:] == ['x']\n")
    status, out, _ = command("audit", "app.py", "x", "--fix")
    assert status == 0
    assert "--fix: taken as an option of audit, as app.py has none of that name; write it before app.py" in out
    assert "    x = x.to(torch.bfloat16)" in (folder / "app.py").read_text()


def test_less_is_printed(command, write):
    write("app.py", BAD + "import numpy as np\ntorch.tensor(np.float64(1))\ntorch.ones(3).double()\n")
    everything = command("audit", "app.py")[1]
    assert "casts that are worth a look" in everything
    assert "info[DG112]" in everything
    out = command("audit", "--no-casts", "--severity", "warning", "app.py")[1]
    assert "casts that are worth a look" not in out
    assert "DG112" not in out
    assert "DG103" in out
    assert command("audit", "--quiet", "--ignore", "DG103", "app.py") == (0, "", "")
    assert "DG103" in command("audit", "--quiet", "app.py")[1]


@pytest.mark.slow
def test_json_into_a_pipe_that_is_closed(write):
    write("app.py", GOOD)
    line = f"{sys.executable} -m dtypeguard audit --json - app.py | true; exit ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert run.returncode in (0, 1, 141)  # as fast as `true` ends
    assert "Error" not in run.stderr


def test_json_of_a_program_that_raises(command, write, folder):
    command("audit", "--json", "report.json", write("app.py", BAD + "raise ValueError('no')"))
    assert json.loads((folder / "report.json").read_text())["error"] == "ValueError: no"


def test_baselines(command, write, folder):
    write("app.py", BAD)
    status, out, _ = command("audit", "--write-baseline", "known.json", "app.py")
    assert status == 0
    last = "exit status 0: the audit found 1 warning, known from now on"
    told = "1 warning known from now on in known.json\n"
    advice = "next: run with --baseline known.json, which reports only what is new\n"
    assert out.endswith(f"{told}{advice}{last}\n")
    status, out, _ = command("audit", "--baseline", "known.json", "app.py")
    last = "exit status 0: nothing of severity warning or worse that known.json does not know, 1 warning that it knows"
    assert (status, out.splitlines()[-1]) == (0, last)
    assert "DG103" not in out  # what is known is not printed, and said to be so
    assert "nothing more found\n" not in out
    assert "audit report: 1 warning not shown; casts at 1 line\n" in out
    write("app.py", "# a line above\n" + BAD)
    assert command("audit", "--baseline", "known.json", "app.py")[0] == 0
    write("app.py", BAD + "\ndef other(x):\n    x.to(torch.float16)\n\nother(torch.ones(3))\n")
    status, out, _ = command("audit", "--baseline", "known.json", "app.py")
    assert status == 1
    assert re.findall(r"--> (.*)", out) == ["app.py:10 in other"]
    assert out.endswith(
        "exit status 1: the audit found 1 warning that known.json does not know, 1 warning that it knows\n"
    )
    both = ["--baseline", "known.json", "--write-baseline", "known.json"]
    assert command("audit", *both, "app.py")[0] == 1  # says what is new, once
    assert command("audit", *both, "app.py")[0] == 0


def test_mere_information_is_known_too_and_fails_where_it_is_asked_to(command, write, folder):
    mere = "import torch\nx = torch.ones(3) * torch.ones(3).double()\n"
    fails = ["--fail-on", "info", "--json", "report.json"]
    status, out, _ = command("audit", *fails, write("app.py", mere))
    assert (status, out.splitlines()[0]) == (1, "FAIL: 1 info")
    assert json.loads(Path("report.json").read_text())["verdict"] == "FAIL: 1 info"
    assert command("audit", write("app.py", mere))[1].startswith("Clean; 1 info\n")
    command("audit", "--write-baseline", "known.json", "app.py")
    known = ["--baseline", "known.json"]
    assert command("audit", *known, *fails, "app.py")[0] == 0
    write("app.py", mere + "y = torch.ones(4) - torch.ones(4).double()\n")
    status, out, _ = command("audit", *known, "app.py")
    assert (status, re.findall(r"info\[DG101\] (.*)", out)) == (0, ["app.py:3 in <module>"])
    status, out, _ = command("audit", *known, *fails, "app.py")
    assert (
        out.splitlines()[-1]
        == "exit status 1: the audit found 1 info that known.json does not know, 1 info that it knows"
    )
    assert status == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--json", "no/such/report.json"], "cannot write no/such/report.json: there is no folder *no/such"),
        (["--html", "no/report.html"], "cannot write no/report.html: there is no folder *no"),
        (["--write-baseline", "no/known.json"], "cannot write no/known.json: there is no folder *no"),
        (["--json", "folder"], "cannot write folder: it is a folder"),
        (["--json", "."], "cannot write .: it is a folder"),
        (["--html", "app.py/report.html"], "cannot write app.py/report.html: there is no folder *app.py"),
        (["--json", ""], "cannot write : it is a folder"),
        (["--output", "no/x.txt"], "cannot write no/x.txt: there is no folder *no"),
        (["--html", "/proc/x.html"], "cannot write /proc/x.html: *"),
        (["--json", "a", "--html", "./a"], "cannot write ./a: --json and --html name the same file"),
        (["--baseline", "gone.json"], "there is no baseline *gone.json: write it first (--write-baseline)"),
        (["--baseline", "app.py"], "*app.py is no baseline, as --write-baseline writes it: it is no JSON *"),
        (["--sarif"], "unrecognized arguments: --sarif (did you mean '--output-format sarif'?)"),
        (["--baseline", "folder"], "the baseline *folder cannot be read: Is a directory"),
        (["--ignore", "DG999"], "--ignore DG999 is no rule: use ids or names*"),
        (["--select", "nonsense"], "--select nonsense is no rule: *"),
        (["--omit", ""], "argument --omit: '' names nothing"),
        (["--source", "gone"], "--source gone is neither a folder or file below * nor a package"),
        (["--fail-on", "fatal"], "argument --fail-on: invalid choice: 'fatal' (choose from *"),
        (["--json"], "the following arguments are required: *"),
        (["--nonsense"], "*"),
    ],
)
def test_wrong_options_are_said_before_the_program_runs(command, write, folder, options, message):
    (folder / "folder").mkdir()
    before = sorted(os.listdir())
    status, out, err = command("audit", *options, write("app.py", "open('ran', 'w')"))
    assert (status, out) == (2, "")
    last = reason(err)
    assert re.fullmatch(re.escape(message).replace(r"\*", ".*"), last)
    assert "Traceback" not in err
    assert sorted(os.listdir()) == sorted([*before, "app.py"])


@pytest.mark.parametrize("option", ["--json", "--html", "--output", "--write-baseline"])
def test_a_run_that_fails_leaves_files_as_they_were(command, write, option):
    """Files are tried before the run: an old one keeps its text, and no empty one is left."""
    write("old", "old")
    before = sorted(os.listdir())
    for name in ("old", "new"):
        assert command("audit", option, name, "gone.py")[0] == 2
    assert (sorted(os.listdir()), Path("old").read_text()) == (before, "old")


@pytest.mark.parametrize("option", ["--json", "--html"])
@pytest.mark.parametrize("words", [("dryrun", "net:Net"), ("compare", "net:Net", "--dtype", "bfloat16")])
def test_every_command_tries_its_files_before_it_runs(command, write, words, option):
    write("net.py", "open('ran', 'w')")
    status, _, err = command(*words, option, "no/x")
    assert (status, Path("ran").exists()) == (2, False)
    assert f"error: cannot write no/x: there is no folder {os.getcwd()}/no\n" in err


def test_a_broken_pyproject_is_said_before_the_program_runs(command, write, folder):
    write("pyproject.toml", "[tool.dtypeguard]\nselct = []")
    status, _, err = command("audit", write("app.py", "open('ran', 'w')"))
    assert status == 2
    assert reason(err).endswith(
        "pyproject.toml:2: [tool.dtypeguard] has no key 'selct' (did you mean 'select'?): use select, ignore, "
        "severity, per-file-ignores, source, omit, mode, casting, or the tables of commands: audit, compare, describe, "
        "diff, dryrun, manifest"
    )
    assert not (folder / "ran").exists()


def test_a_disk_that_is_full_is_said_after_the_report(command, write, monkeypatch):
    write_bytes = Path.write_bytes

    def full(self, data):
        if "a.json" in self.name:
            raise OSError(28, "No space left on device")
        return write_bytes(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    status, out, _ = command("audit", "--json", "a.json", write("app.py", GOOD))
    *_, said, last = out.splitlines()
    assert (status, said) == (2, f"cannot write path='{os.getcwd()}/a.json': no space left on device")
    assert last == "exit status 2: a file could not be written"
    assert REPORT.search(out)


# --- whole processes


def audit(*arguments, **options):
    return warm.run("dtypeguard", "audit", *arguments, strict=True, **options)


LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor([i]).float()

def step(x):
    x.to(torch.bfloat16)

if __name__ == "__main__":
    for method in ("fork", "spawn"):
        for batch in DataLoader(Numbers(), 4, num_workers=1, multiprocessing_context=method):
            step(batch)
    print("done")
"""


@pytest.mark.slow
def test_workers_of_a_data_loader(write, folder):
    run = audit(write("app.py", LOADER))
    assert (run.returncode, run.stderr) == (1, "")
    assert run.stdout.startswith("done\n")
    assert len(REPORT.findall(run.stdout)) == 1


@pytest.mark.slow
def test_a_child_that_the_program_forks_prints_no_report(write, folder):
    program = BAD + (
        "import os, sys\nchild = os.fork()\nif child:\n    print('waited', os.waitpid(child, 0)[1], flush=True)\n"
        "else:\n    step(torch.ones(3)); sys.exit(4)\n"
    )
    run = audit(write("app.py", program))
    assert (run.returncode, run.stderr) == (1, "")
    assert run.stdout.startswith("waited 1024\n")
    assert len(REPORT.findall(run.stdout)) == 1


def test_exit_handlers_and_threads_that_outlive_the_script(write, folder):
    program = (
        "import atexit, threading, time, torch, __main__\nVALUE = 7\n"
        "atexit.register(lambda: print('exit', __main__.VALUE))\n"
        "def later():\n    time.sleep(0.3); print('thread', __main__.VALUE, torch.ones(2).sum().item())\n"
        "threading.Thread(target=later).start()\n"
    )
    run = audit(write("app.py", program))
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines()[-2:] == ["thread 7 2.0", "exit 7"]


@pytest.mark.slow
def test_a_reader_that_has_seen_enough(write, folder):
    write("app.py", "print('x' * 200_000)")
    line = f"{sys.executable} -m dtypeguard audit app.py | head -c 10"
    run = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert "Traceback" not in run.stderr or "app.py" in run.stderr
    rules = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m dtypeguard rules | true"], capture_output=True, text=True
    )
    assert rules.stderr == ""
    full = subprocess.run(["bash", "-c", f"{sys.executable} -m dtypeguard rules > /dev/full"], capture_output=True)
    assert (full.returncode, full.stderr) == (
        1,
        b"exit status 1: standard output has no room, so not all was written\n",
    )


@pytest.mark.slow
def test_a_terminal_that_cannot_show_it_all(write, folder):
    run = audit(write("app.py", BAD), env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (run.returncode, run.stderr) == (1, "")
    assert "DG103" in run.stdout


@pytest.mark.slow
def test_safe_path_is_respected(write, folder):
    write("app.py", "import sys; print(sys.path[0])")
    command = [sys.executable, "-P", "-m", "dtypeguard", "audit", "app.py"]
    mine = subprocess.run(command, capture_output=True, text=True).stdout
    assert mine.startswith(python("-P", "app.py")[1])


# --- rules


def test_all_rules(command):
    status, out, err = command("rules")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == [*MISTAKES, *RULES]
    assert "{" not in out


@pytest.mark.parametrize("name", ["DG309", "dg309", "clip-before-unscale", "Clip-Before-Unscale"])
def test_one_rule(command, name):
    assert command("rules", name) == (0, (ROOT / "docs" / "rules" / "DG309.md").read_text(), "")


def test_a_family_and_a_rule(command):
    _, out, _ = command("rules", "DG4", "DG301")
    assert re.findall(r"^(?:# )?(DG\d+)(?= +(?:info|warning|error) |.*\n\nSeverity)", out, re.MULTILINE) == [
        *(rule for rule in RULES if rule.startswith("DG4")),
        "DG301",
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("DG3090", "'DG3090' is no rule (did you mean 'DG309'"),
        ("unscale_twice", "'unscale_twice' is no rule (did you mean 'unscale-twice'"),
        ("unscale", "'unscale' is no rule (did you mean 'unscale-twice'"),
        ("zzz", "'zzz' is no rule: use ids or names, such as DG101, or "),
        ("", "'' is no rule"),
    ],
)
def test_rules_that_there_are_not(command, name, message):
    status, out, err = command("rules", name)
    assert (status, out) == (2, "")
    assert reason(err).startswith(message)


# --- doctor, usage


def test_doctor(command, write):
    status, out, err = command("doctor")
    assert (status, err) == (0, "")
    facts = dict(
        re.split(r" {1,}", line.replace("default dtype", "default_dtype"), maxsplit=1) for line in out.splitlines()
    )
    assert list(facts) == [
        "dtypeguard", "python", "torch", "devices", "default_dtype", "autocast", "mode", "casting", "rules",
        "internals", "optional",
    ]  # fmt: skip
    assert all(name in facts["optional"] for name in ("pytest", "libcst", "shtab", "safetensors"))
    assert facts["default_dtype"] == "float32"
    assert facts["mode"].startswith("lenient (")
    assert facts["rules"].endswith(f"{len(RULES)} of {len(RULES)} on")
    assert "cpu" in facts["devices"]
    assert re.search(r"rich \S+, jinja2 \S+, hypothesis \S+, pytest \S+", facts["optional"])


def test_doctor_says_what_is_selected(command, write, folder):
    write(
        "pyproject.toml",
        "[tool.dtypeguard]\nignore = ['DG309']\nseverity = 'warning'\nper-file-ignores = {a = ['DG3']}",
    )
    status, out, _ = command("doctor")
    assert status == 0
    expected = f"{len(RULES) - 1} of {len(RULES)} on; without DG309; from severity warning; 1 per-file-ignores"
    assert f"rules          {folder / 'pyproject.toml'}; {expected}\n" in out


def test_doctor_fails_on_what_is_wrong(command, monkeypatch):
    monkeypatch.setattr("dtypeguard._tools.doctor.name_of", lambda dtype: 1 / 0)
    status, out, _ = command("doctor")
    assert (status, out.splitlines()[-1]) == (1, "exit status 1: problems with default dtype, autocast")
    assert "default dtype  problem: division by zero\n" in out


@pytest.mark.parametrize(
    ("environment", "mode"),
    [("", "strict ({file}, for code below its folder)"), ("warn", "warn (DTYPEGUARD_MODE = 'warn')")],
)
def test_doctor_says_where_mode_and_casting_come_from(folder, write, environment, mode):
    write("pyproject.toml", "[tool.dtypeguard]\nmode = 'Strict'\ncasting = 'promote'")
    environment = {**os.environ, "DTYPEGUARD_MODE": environment}
    out = warm.run("dtypeguard", "doctor", env=environment).stdout
    file = folder / "pyproject.toml"
    assert f"\nmode           {mode.format(file=file)}\n" in out
    assert f"\ncasting        promote ({file}, for code below its folder)\n" in out


def test_version(command):
    assert command("--version") == (0, f"{dtypeguard.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["audit"], ["audit", "-m"], ["version"], ["doctor", "--x"], ["--nonsense"]]
)
def test_wrong_usage(command, arguments):
    status, out, err = command(*arguments)
    assert (status, out) == (2, "")
    assert re.search(r"error: .*\nsee: python -m dtypeguard.* --help\n$", err)
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [[], ["audit"], ["rules"], ["doctor"]])
def test_help(command, arguments):
    status, out, err = command(*arguments, "--help")
    assert (status, err) == (0, "")
    assert out.startswith("usage: python -m dtypeguard")
    assert max(map(len, out.splitlines())) <= 120


def test_the_script_is_the_module(folder):
    script = os.path.join(os.path.dirname(sys.executable), "dtypeguard")
    if not os.path.exists(script):
        pytest.skip("no console script beside this interpreter")
    run = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, f"{dtypeguard.__version__}\n")


# ---------------------------------------------------------------- dryrun

NET = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) @ torch.ones(2, dtype=torch.float32)

def batch():
    return {"x": torch.ones(3, 4)}

def wrong():
    return 3

missing = None
"""


def test_dryrun_prints_the_table_and_fails_where_a_dtype_is_refused(command, write):
    write("net.py", NET)
    status, out, err = command("dryrun", "net:Net", "--batch", "net:batch", "--html", "t.html", "--json", "t.json")
    assert (status, err) == (0, "")
    assert re.match(r"Net in float32 on \w+: runs\n", out)
    assert "\nNet: 48 cells, " in out
    assert "<td>" in Path("t.html").read_text()
    assert json.loads(Path("t.json").read_text())["module"] == "Net"
    asked = "dryrun", "net:Net", "--batch", "net:batch", "--require", "float32,bfloat16"
    status, out, err = command(*asked)
    assert status == 1
    assert "net.py:10, in forward: `self.layer(x) @ torch.ones(2," in out  # the table says why
    assert out.endswith("exit status 1: Net does not run in bfloat16, which --require names\n")
    status, _, err = command(*asked, "--output", "t.txt")
    assert "\nNet does not run (refused): net.py:10, in forward: `self.layer(x) @ torch.ones(2, " in err
    assert "torch.ones(2, dtype=torch.float32)` was refused" in err  # the model's words stay
    assert command(*asked[:-1], "float32")[0] == 0


def test_dryrun_names_the_module_where_no_line_of_the_program_runs(tmp_path):
    more = "def make():\n    return nn.Linear(4, 2)\n\ndef rows():\n    return torch.ones(3, 4)\n"
    (tmp_path / "net.py").write_text(f"{NET}\n{more}")
    words = ["dryrun", "net:make", "--batch", "net:rows", "--dtype", "bf16,f32"]
    done = warm.run("dtypeguard", *words, cwd=tmp_path)
    assert "cells: in Linear: `addmm` was refused" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("net",), "'net' names no function: write package.module:function"),
        (("nets:Net",), "there is no module 'nets'"),
        (("net:Net2",), "net has no 'Net2'"),
        (("net:missing",), "net:missing is None: name a function that returns an nn.Module, or (model, batch)"),
        (("net:batch",), "net:batch returned a dict: return an nn.Module, or (model, batch)"),
        (("net:Net",), "a batch is missing: write --batch package.module:function, which returns "),
        (
            ("net:Net", "--batch", "net:wrong"),
            "net:wrong returned an int as batch: return a tensor, a tuple of positional or a dict of ",
        ),
        (("net:Net", "--batch", "net:batch", "--require", "floot"), "--require floot is no dtype: did you mean"),
    ],
)
def test_dryrun_says_what_it_was_given_wrongly(command, write, arguments, says):
    write("net.py", NET)
    status, _, err = command("dryrun", *arguments)
    assert status == 2
    assert says in err
