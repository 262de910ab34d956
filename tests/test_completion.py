"""`python -m dtypeguard completion`: what shells complete, tried in those that are installed."""

import shutil
import subprocess
import sys

import pytest
from support import reason

from dtypeguard.__main__ import main
from dtypeguard._core.base.pages import pages

SHELLS = "bash", "zsh", "fish"
RULES = {name for name in pages() if name.startswith("DG11")}
CASES = [
    ("au", {"audit"}),
    ("d", {"describe", "dryrun", "diff", "doctor"}),
    ("audit --output-f", {"--output-format"}),
    ("audit --no-", {"--no-casts", "--no-prove"}),
    ("audit --output-format ", {"text", "github", "sarif", "json"}),
    ("audit --fail-on e", {"error"}),
    ("audit --ignore eps", {"epsilon-vanishes", "eps-is-zero"}),
    ("audit --html tr", {"train.py", "trees"}),
    ("audit tr", {"train.py", "trees"}),
    ("compare m:m --dt", {"--dtype"}),
    ("rules DG11", RULES),
    ("completion ", set(SHELLS)),
]
BASH = """\
source ./script
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
function=$(complete -p dtypeguard | sed 's/.*-F //; s/ .*//')
$function
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(params=["bash", "fish"])
def complete(request, tmp_path, monkeypatch, capsys):
    """What a shell makes of a line that begins with the command."""
    shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    monkeypatch.chdir(tmp_path)
    assert main(["completion", shell]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "train.py").touch()
    (tmp_path / "trees").mkdir()

    def run(line):
        words = f"dtypeguard {line}"
        if shell == "bash":
            command = ["bash", "--norc", "-c", BASH, "bash", *words.split(" ")]
        else:
            command = ["fish", "-N", "-c", "source script; complete -C $argv[1]", words]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return {found.partition("\t")[0].rstrip("/") for found in out.splitlines() if found}

    return run


def test_commands_options_choices_rules_and_files(complete):
    for line, expected in CASES:
        assert complete(line) == expected, line


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_reads_the_script(capsys, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    run = subprocess.run([shell, "-n", "/dev/stdin"], input=script, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_without_shtab_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as stop:
        main(["completion", "bash"])
    assert stop.value.code == 2
    assert reason(capsys.readouterr().err) == "it needs shtab: pip install 'dtypeguard[completion]'"


@pytest.mark.parametrize("words", [["--help"], ["rules", "DG113"], ["completion", "bash"], ["audit", "--nonsense"]])
def test_what_runs_no_model_loads_no_torch(tmp_path, words):
    """So it answers in tenths of a second, also where pyproject.toml names rules."""
    (tmp_path / "pyproject.toml").write_text(
        "[tool.dtypeguard]\nignore = ['DG3', 'eps-is-zero']\naudit.values = true\n"
    )
    program = (
        f"import sys; from dtypeguard.__main__ import main\ntry: main({words})\nfinally: print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "False"
