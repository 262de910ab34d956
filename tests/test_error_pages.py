"""The pages about contracts (docs/errors): the first program raises or warns what is printed below it, the second is
silent."""

import os
import pickle
import re
import runpy
import socket
import subprocess
import sys
import traceback
import warnings

import pytest
import torch

import dtypeguard
from dtypeguard import DtypeGuardError, DtypeGuardWarning
from dtypeguard._core.base.codes import MISTAKES
from dtypeguard._core.base.pages import page

PARTS = re.compile(r"```(?:python|text)\n(.*?)```", re.DOTALL)
HEAD = "What it does", "Why is this bad?", "Example", "Use instead", "When to ignore it", "See also"
SEVERAL = "DG014"  # its programs need two processes


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Programs are run as train.py of the current folder, and leave no mode."""
    monkeypatch.chdir(tmp_path)
    dtypeguard.reset_casts()
    yield tmp_path
    dtypeguard.set_mode(None)


def run(source, folder):
    """What a program raised, or warned last, and at which of its lines; None for neither."""
    (folder / "train.py").write_text(source)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            runpy.run_path("train.py", run_name="__main__")
        except DtypeGuardError as error:
            return error, [
                entry.lineno for entry in traceback.extract_tb(error.__traceback__) if entry[0] == "train.py"
            ][-1]
    found = [(one.message, one.lineno) for one in said if isinstance(one.message, DtypeGuardWarning)]
    return found[-1] if found else None


def parts_of(code):
    """Of a page: the bad program, what it prints, the good program."""
    return PARTS.findall(page(code))


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_page_has_what_is_known_of_its_mistake(mistake):
    kind = "Warning" if mistake.kind.endswith("Warning") else "Error"
    head = f"# {mistake.id} {mistake.name}\n\n{kind}: {mistake.kind}\n\n{mistake.summary}\n\n"
    assert page(mistake.id).startswith(head)
    assert tuple(re.findall("^## (.*)", page(mistake.id), re.MULTILINE)) == HEAD
    bad, _, _ = parts_of(mistake.id)
    line = next(number for number, text in enumerate(bad.splitlines(), 1) if text.endswith("  # <--"))
    assert f"\n\ndtypeguard {'warns' if kind == 'Warning' else 'raises'}, at line {line}:\n\n" in page(mistake.id)


@pytest.mark.parametrize("code", [code for code in MISTAKES if code != SEVERAL])
def test_a_program_prints_what_its_page_says(code, folder):
    bad, printed, _ = parts_of(code)
    told, line = run(bad, folder)
    name = type(told).__name__ if isinstance(told, Warning) else f"dtypeguard.{type(told).__name__}"
    assert f"{name}: {told}\n" == printed
    assert (told.code, type(told).__name__) == (code, MISTAKES[code].kind)
    assert bad.splitlines()[line - 1].endswith("  # <--")
    assert vars(pickle.loads(pickle.dumps(told))) == vars(told)


@pytest.mark.parametrize("code", [code for code in MISTAKES if code != SEVERAL])
def test_a_good_program_is_silent(code, folder):
    assert run(parts_of(code)[2], folder) is None


@pytest.mark.slow
def test_ranks_that_differ_print_what_the_page_says(folder):
    bad, printed, good = parts_of(SEVERAL)
    ended = on_two_ranks(bad, folder)
    lines = [line.removeprefix("[rank0]: ") for line in ended[0][1].splitlines()]
    begin = next(n for n, line in enumerate(lines) if line.startswith("dtypeguard.RankError"))
    assert "\n".join(lines[begin:]).startswith(printed.rstrip())
    assert [code for code, _ in on_two_ranks(good, folder)] == [0, 0]


def on_two_ranks(source, folder):
    """The exit status and the errors of each, as torchrun would start them."""
    (folder / "train.py").write_text(source)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    command, options = [sys.executable, "train.py"], {"stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen(command, env={**os.environ, **group, "RANK": str(n)}, **options) for n in range(2)]
    try:
        said = [rank.communicate(timeout=60)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, text) for rank, text in zip(ranks, said, strict=True)]


@pytest.mark.parametrize("kind", DtypeGuardError.__subclasses__(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_code(kind):
    """That of a rule where it is `amp.watch` that raises."""
    assert kind is dtypeguard.AmpError or MISTAKES[kind.code].kind == kind.__name__


def test_an_error_of_a_watch_has_the_id_and_the_fix_of_its_rule():
    model = torch.nn.Linear(2, 2).half()
    with pytest.raises(dtypeguard.AmpError) as caught:
        dtypeguard.amp.watch(model, torch.optim.Adam(model.parameters()), torch.amp.GradScaler("cpu"), mode="strict")
    error = caught.value
    assert error.code == error.rule
    assert f"fix        {error.fix}\n" in str(error)
    assert str(error).endswith(f"docs/rules/{error.code}.md")


def test_the_command_line_prints_the_page_and_the_list():
    def said(*names):
        command = [sys.executable, "-m", "dtypeguard", "rules", *names]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert said("DG006").stdout == page("DG006")
    listed = re.findall(r"^DG\d{3}", said("DG0").stdout, re.MULTILINE)
    assert listed == list(MISTAKES)
    assert "did you mean 'dtype-differs'" in said("dtype-difers").stderr
