"""The tables of commands in `[tool.dtypeguard]`: each option of the command line is a key, and what is wrong is told
with its line, by every command, before anything runs."""

import os
import re
import sys

import pytest
import warm
from support import reason

from dtypeguard.__main__ import main, parser
from dtypeguard._core.base import pyproject
from dtypeguard._tools.settings import commands_of, keys, load, settle

COMMANDS = commands_of(parser())


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Writes the pyproject.toml of a project, and goes there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["-m"])
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(text):
        path = tmp_path / "pyproject.toml"
        path.write_bytes(text.encode())
        return path

    yield write
    sys.modules.pop("made", None)


def parsed(*arguments):
    """The options of a command line."""
    made = parser()
    load(made)
    options = made.parse_args(arguments)
    settle(options)
    return options


# --- what a table may hold

COMPARE = "dtype = 'bfloat16'"
TABLES = [
    # table, command line, option, value
    ("audit.fail-on = 'error'", "audit app.py", "fail_on", "error"),
    ("audit.fail-on = 'error'", "audit --fail-on info app.py", "fail_on", "info"),
    ("audit.fail-on = 'error'", "audit --no-fail-on app.py", "fail_on", "warning"),
    ("audit.values = true", "audit app.py", "values", True),
    ("audit.values = true", "audit --no-values app.py", "values", False),
    ("audit.values = false", "audit app.py", "values", False),
    ("audit.values = true", "audit --range app.py", "values", "range"),
    ("audit.range = true", "audit app.py", "values", "range"),
    ("audit.range = true", "audit --values app.py", "values", True),
    ("audit.casts = false", "audit app.py", "casts", False),
    ("audit.casts = false", "audit --casts app.py", "casts", True),
    ("audit.casts = true", "audit --no-casts app.py", "casts", False),
    ("audit.quiet = true", "audit app.py", "quiet", True),
    ("audit.every = 100", "audit app.py", "every", 100),
    ("audit.every = '2^k'", "audit app.py", "every", "2^k"),
    ("audit.prove-limit = 2.5", "audit app.py", "prove_limit", 2.5),
    ("audit.output-format = 'sarif'", "audit app.py", "output_format", "sarif"),
    ("compare.max-error = 1", "compare m:m --dtype bfloat16", "max_error", 1.0),
    ("compare.batch = 'm:b'", "compare m:m --dtype bfloat16", "batch", "m:b"),
    ("compare.format = ['nvfp4', 'mxfp8']", "compare m:m", "format", ["nvfp4", "mxfp8"]),
    ("compare.format = 'nvfp4,mxfp8'", "compare m:m", "format", ["nvfp4", "mxfp8"]),
    ("compare.format = ['nvfp4']", "compare m:m --format mxfp8", "format", ["mxfp8"]),
    ("compare.format = ['nvfp4']", "compare m:m --dtype bfloat16", "format", None),  # which excludes it
    (f"compare.{COMPARE}", "compare m:m", "dtype", "bfloat16"),  # one of three that are required
    (f"compare.{COMPARE}", "compare m:m --region float16", "dtype", None),
    (f"compare.{COMPARE}", "compare m:m --dtype float16", "dtype", "float16"),
    ("dryrun.require = ['bfloat16']", "dryrun m:m", "require", ["bfloat16"]),
    ("dryrun.require = ['bfloat16']", "dryrun m:m --require int8 --require float32", "require", ["int8", "float32"]),
    ("diff.batch = 'm:b'", "diff m:a m:b", "batch", "m:b"),  # which is required
    ("manifest.shapes = true", "manifest m:m", "shapes", True),
    ("describe.batch = 'm:b'", "describe m:m", "batch", "m:b"),
    ("audit.fail-on = 'error'", "compare m:m --dtype bfloat16", "max_error", None),  # another command's
]  # fmt: skip


@pytest.mark.parametrize(("table", "line", "option", "value"), TABLES)
def test_the_file_gives_defaults_and_the_command_line_counts_before_it(project, table, line, option, value):
    project(f"[tool.dtypeguard]\n{table}\n")
    assert getattr(parsed(*line.split()), option) == value


@pytest.mark.parametrize("line", ["audit app.py", "audit --diff --no-prove app.py"])
def test_a_limit_of_runs_that_prove_edits_waits_until_there_are_such(project, capsys, line):
    folder = project("[tool.dtypeguard]\naudit.prove-limit = 9\naudit.search-limit = 99\n").parent
    (folder / "app.py").write_text("import torch\n")
    assert main(line.split()) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "line", "option", "value"),
    [
        ("audit.html = 'out/report.html'", "audit a.py", "html", ["..", "out", "report.html"]),
        ("audit.baseline = '../known.json'", "audit a.py", "baseline", ["..", "..", "known.json"]),
        ("audit.html = 'report.html'", "audit --html here.html a.py", "html", ["here.html"]),
        ("audit.json = '-'", "audit a.py", "json", ["-"]),  # standard output
        ("manifest.check = 'dtypes.lock'", "manifest m:m", "check", ["..", "dtypes.lock"]),
        ("compare.recipe = ['torchao', 'r.json']", "compare m:m --dtype float16", "recipe", ["torchao", "../r.json"]),
    ],
)
def test_a_path_is_relative_to_the_file(project, monkeypatch, table, line, option, value):
    folder = project(f"[tool.dtypeguard]\n{table}\n").parent
    (folder / "deep").mkdir()
    monkeypatch.chdir(folder / "deep")
    assert getattr(parsed(*line.split()), option) == (value if option == "recipe" else os.path.join(*value))


def test_an_absolute_path_stays(project, tmp_path):
    project(f"[tool.dtypeguard.audit]\nhtml = '{tmp_path / 'a.html'}'\n")
    assert parsed("audit", "app.py").html == str(tmp_path / "a.html")


def test_every_option_is_a_key_and_can_be_taken_back(project):
    """A new option needs nothing but its line in the parser."""
    assert {name for name in COMMANDS if keys(COMMANDS[name])} == set(pyproject.COMMANDS)
    for command, made in COMMANDS.items():
        options = {name for action in made._actions for name in action.option_strings if name.startswith("--")}
        known = {name.removeprefix("--").removeprefix("no-") for name in options} - {"help"} - set(pyproject.KEYS)
        assert set(keys(made)) == known
        assert {f"--no-{key}" for key in keys(made)} <= options, command


# --- what is wrong

TOP, AUDIT, COMPARE = "tool.dtypeguard", "tool.dtypeguard.audit", "tool.dtypeguard.compare"
USE = f"use {', '.join(keys(COMMANDS['audit']))}"
FAIL_ON = "is not one of 'info', 'warning', 'error', 'never'"
WRONG = [
    # table, what stands in its second line, message
    (TOP, "selct = []", "has no key 'selct' (did you mean 'select'?): use select, ignore, severity, "),
    (TOP, "per_file_ignores = 3", "has no key 'per_file_ignores' (did you mean 'per-file-ignores'?): use "),
    (TOP, "fail-on = 'error'", "has no key 'fail-on'; it is one of [tool.dtypeguard.audit]"),
    (TOP, "json = 'a'", "has no key 'json'; it is one of [tool.dtypeguard.audit] and [tool.dtypeguard.compare] and "),
    (TOP, "[tool.dtypeguard.adit]", "has no key 'adit' (did you mean 'audit'?): use select, ignore, severity, "),
    (TOP, "audit = true", "audit=true is not a table: write [tool.dtypeguard.audit]"),
    (
        TOP,
        "mode = 'strickt'",
        "mode='strickt' is not a mode (did you mean 'strict'?): use one of 'strict', 'lenient', ",
    ),
    (TOP, "select = ['DG99']", "select='DG99' is no rule: use ids or names"),
    (TOP, "source = 3", "source=3 is not a list of strings, as in ['src/']"),
    (TOP, "omit = ['']", "omit='' names nothing"),
    (AUDIT, "steps = 0", "steps: 0 is no number of steps: use 1 or more"),
    (AUDIT, "steps = '3'", "steps: '3' is a string: write 3, without quotes"),
    (AUDIT, "every = '100'", "every: '100' is a string: write 100, without quotes"),
    (AUDIT, "source = ['src']", "has no key 'source'; it is one of [tool.dtypeguard]"),
    (AUDIT, "fail_on = 'error'", f"has no key 'fail_on' (did you mean 'fail-on'?): {USE}"),
    (AUDIT, "no-casts = true", f"has no key 'no-casts' (did you mean 'casts'?): {USE}"),
    (AUDIT, "program = 'a.py'", f"has no key 'program': {USE}"),
    (AUDIT, "help = true", f"has no key 'help': {USE}"),
    (AUDIT, "ignore = ['DG3']", "has no key 'ignore'; it is one of [tool.dtypeguard]"),
    (AUDIT, "fail-on = 'eror'", f"fail-on='eror' {FAIL_ON} (did you mean 'error'?)"),
    (AUDIT, "fail-on = true", f"fail-on=true {FAIL_ON}"),
    (AUDIT, "fail-on = ['error']", f"fail-on=['error'] {FAIL_ON}"),
    (AUDIT, "values = 'range'", "values='range' is not true or false"),
    (AUDIT, "values = 1", "values=1 is not true or false"),
    (AUDIT, "html = true", "html=true is not a path"),
    (AUDIT, "prove-limit = -1", "prove-limit: -1 is no number of seconds"),
    (AUDIT, "every = true", "every=true is not what --every takes"),
    (COMPARE, "max-error = 'tiny'", "max-error: tiny is neither a number nor a percentage, as 1%"),
    (COMPARE, "max-error = '1e-2'", "max-error: '1e-2' is a string: write 1e-2, without quotes"),
    (COMPARE, "batch = ['m:b']", "batch=['m:b'] is not a string"),
    (COMPARE, "format = [3]", "format=[3] is not a list of strings"),
    (COMPARE, "recipe = ['torchao']", "recipe=['torchao'] is not a list of 2 strings: TOOL, PATH"),
]


@pytest.fixture
def refused(project, capsys):
    """What a command says of a file."""

    def say(text):
        file = project(text)
        with pytest.raises(SystemExit) as stop:
            main(["doctor"])
        out, err = capsys.readouterr()
        assert (stop.value.code, out) == (2, "")
        return reason(err).removeprefix(str(file))

    return say


@pytest.mark.parametrize(("table", "line", "message"), WRONG)
def test_a_wrong_key_or_value_is_told_with_what_is_legal(refused, table, line, message):
    assert refused(f"[{table}]\n{line}\n").startswith(f":2: [{table}] {message}")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[tool.dtypeguard]\n\n# mode\nmode = 3", 4, "[tool.dtypeguard] mode=3 is not a mode"),
        ("[tool]\ndtypeguard = 'strict'", 2, "[tool.dtypeguard] is not a table, but 'strict'"),
        ("[[tool.dtypeguard]]\nmode = 3", 1, "[tool.dtypeguard] is not a table, but [{'mode': 3}]"),
        ("tool = {dtypeguard = {mode = 3}}", 1, "[tool.dtypeguard] mode=3 is not a mode"),
        ("\ntool.dtypeguard.audit.html = 3", 2, "[tool.dtypeguard.audit] html=3 is not a path"),
        ("x = 1\r\n[tool.dtypeguard]\r\n\r\nmode = 3\r\n", 4, "[tool.dtypeguard] mode=3 is not a mode"),
        ("# \u2028\n[tool.dtypeguard]\n'mode' = 3", 3, "[tool.dtypeguard] mode=3 is not a mode"),
        ("x = '''\n[tool.dtypeguard]\nmode = 3\n'''\n[tool.dtypeguard]\nmode = 3", 6, "[tool.dtypeguard] mode=3 is"),
        ("[tool.dtypeguard]\nselect = [\n  'DG1',\n  'DG99',\n]", 2, "[tool.dtypeguard] select='DG99' is no rule"),
        ("[tool.dtypeguard.per-file-ignores]\na = []\nb = ['x']", 3, "[tool.dtypeguard] per-file-ignores.'b'='x' is"),
        ("[tool.dtypeguard.audit]\nvalues = true\nrange = true", 3, "[tool.dtypeguard.audit] sets values and range,"),
        ("[tool.dtypeguard.diff]\nbacth = 'm:b'", 2, "[tool.dtypeguard.diff] has no key 'bacth' (did you mean"),
    ],
)  # fmt: skip
def test_the_line_is_that_of_the_key(refused, text, line, message):
    assert refused(text).startswith(f":{line}: {message}")


@pytest.mark.parametrize("text", ["[tool.dtypeguard", "a = '\0'", "[tool.dtypeguard]\nmode = strict"])
def test_a_file_that_is_no_toml(refused, text):
    assert re.match(r" is no valid TOML: .*(line \d|end of document)", refused(text))


@pytest.mark.parametrize(
    "words", [*([name] for name in COMMANDS if name != "rules"), [], ["nonsense"], ["audit", "--nonsense"]]
)
def test_it_stops_every_command(project, capsys, words):
    """Also one whose own options are wrong, as they may be missing for the same reason."""
    file = project("[tool.dtypeguard.diff]\nbacth = 'm:b'")
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert f"error: {file}:2: [tool.dtypeguard.diff] has no key 'bacth'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["doctor"], ["audit", "app.py"]])
def test_so_does_a_mode_of_the_environment_that_there_is_not(monkeypatch, capsys, words):
    monkeypatch.setenv("DTYPEGUARD_MODE", "strickt")
    with pytest.raises(SystemExit) as stop:
        main(words)
    says = "DTYPEGUARD_MODE='strickt' is not a mode (did you mean 'strict'?): use one of "
    assert (stop.value.code, says in capsys.readouterr().err) == (2, True)


def test_the_command_that_lists_the_rules_runs_where_one_is_wrong_in_the_file(project, capsys):
    project("[tool.dtypeguard]\nignore = ['thrown-away-cast']")
    assert main(["rules", "DG103"]) == 0
    assert capsys.readouterr().out.startswith("# DG103 discarded-cast")
    with pytest.raises(SystemExit):
        main(["doctor"])
    assert "ignore='thrown-away-cast' is no rule (did you mean 'discarded-cast'?)" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["audit", "--help"]])
def test_help_and_version_are_told_nevertheless(project, capsys, words):
    project("[tool.dtypeguard.diff]\nbacth = 'm:b'")
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert (stop.value.code, capsys.readouterr().err) == (0, "")


# --- what is run

MODEL = """\
import torch
def make(): return torch.nn.Linear(4, 2)
def batch(): return torch.linspace(-1, 1, 12).view(3, 4)
"""


def test_commands_go_by_the_file(project):
    file = project("""
[tool.dtypeguard.audit]
fail-on = "error"
html = "report.html"
values = true
baseline = "known.json"
[tool.dtypeguard.compare]
batch = "made:batch"
dtype = "bfloat16"
max-error = 1e-9
""")
    file.with_name("made.py").write_text(MODEL)
    file.with_name("app.py").write_text("import torch\ntorch.ones(3).bfloat16()\n")

    def run(*words):
        done = warm.run("dtypeguard", *words)
        return done.returncode, done.stdout.splitlines()[-1] if done.stdout else reason(done.stderr)

    assert run("audit", "--write-baseline", "known.json", "--fail-on", "info", "app.py")[0] == 0  # there is none yet
    assert "1 warning" in file.with_name("report.html").read_text()
    known = "exit status 0: nothing of severity info or worse that known.json does not know, 1 warning that it knows"
    assert run("audit", "--no-html", "--fail-on", "info", "app.py") == (0, known)
    status, last = run("compare", "made:make")
    assert status == 1
    assert re.fullmatch(r"exit status 1: output error [\d.]+ % is above --max-error 1e-07 %", last)
    status, last = run("compare", "made:make", "--bits", "4")
    assert (status, last) == (2, "--bits goes with --format")


def test_an_error_says_which_option_is_of_the_file(project, capsys):
    project("[tool.dtypeguard.compare]\nbits = 4\n").with_name("made.py").write_text(MODEL)
    with pytest.raises(SystemExit):
        main(["compare", "made:make", "--batch", "made:batch", "--dtype", "bfloat16"])
    assert (
        reason(capsys.readouterr().err)
        == "--bits goes with --format; pyproject.toml sets bits in [tool.dtypeguard.compare]"
    )


@pytest.mark.parametrize(
    ("table", "line", "option"),
    [
        ("audit.html = 'no/report.html'", "audit app.py", "html in [tool.dtypeguard.audit]"),
        ("audit.baseline = 'gone.json'", "audit app.py", "baseline in [tool.dtypeguard.audit]"),
        ("compare.batch = 'gone:batch'", "compare made:make --dtype bfloat16", "batch in [tool.dtypeguard.compare]"),
        ("compare.dtype = 'int9'", "compare made:make --batch made:batch", "dtype in [tool.dtypeguard.compare]"),
        ("compare.dtype = 'int9'", "compare made:make --batch made:batch --dtype int8", None),
        ("manifest.check = 'gone.lock'", "manifest made:make", "check in [tool.dtypeguard.manifest]"),
    ],
)
def test_an_error_about_a_value_of_the_file_says_so(project, capsys, table, line, option):
    folder = project(f"[tool.dtypeguard]\n{table}\n").parent
    (folder / "made.py").write_text(MODEL)
    (folder / "app.py").write_text("")
    with pytest.raises(SystemExit):
        main(line.split())
    _, _, told = reason(capsys.readouterr().err).rpartition("; pyproject.toml sets ")
    assert told == option if option else "pyproject" not in told
