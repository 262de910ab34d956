"""Every program in the README and in the docs runs as printed, alone, and prints what the page says.

A page has a folder of its own. In it,

- a ```python block is run, and what it prints is the ```text block behind it, if there is one: its output, its warnings
  as `line: category: text`, and the error that it ends with. `...` stands for any text;
- a block whose first line is a comment with the name of a file is written to that file, and not run;
- examples/ is on the path;
- in a ```console block the lines after `$ python` and `$ pytest` are run, and what they print stands below them.

`make docs` runs this, and the blocks of Sphinx's doctest; the programs of rules by `test_rule_programs`,
those of errors by `test_error_pages`, those of found.md by `test_found`.
"""

import contextlib
import doctest
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

import pytest
import torch

import dtypeguard

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^(?P<mark>```+)(?P<kind>\w+)\n(?P<text>.*?)^(?P=mark)$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"\A# (\w[\w./-]*\.(?:py|toml|ini|yml|yaml))\n")
RUN = re.compile(r"^\$ ((?:python|pytest)\b.*)$")


def blocks(page):
    return [(match["kind"], match["text"], page[: match.start()].count("\n") + 1) for match in FENCE.finditer(page)]


def pages():
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for path in every:
        made = path.parent.name in ("rules", "errors", "_build") or path.name == "found.md"
        if not made and any(kind in ("python", "console") for kind, *_ in blocks(path.read_text())):
            yield pytest.param(path, id=str(path.relative_to(ROOT)))


def printed(path):
    """What a program prints, the warnings that it causes, and the error that it ends with."""
    out = io.StringIO()

    def show(message, category, filename, line, *_):
        out.write(f"{os.path.basename(filename)}:{line}: {category.__name__}: {message}\n")

    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings(
            "ignore", module=r"(lightning|pytorch_lightning|transformers|accelerate)\b"
        )  # their own
        warnings.simplefilter("always", dtypeguard.DtypeGuardWarning)
        warnings.showwarning = show
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit:
            pass
        except Exception as error:
            out.write("".join(traceback.format_exception_only(error)))
    return out.getvalue()


# These keep a state for the whole process, which a fork would get from the tests before.
FRAMEWORKS = re.compile(r"^(?:from|import) (?:accelerate|lightning|transformers)\b", re.MULTILINE)


def alone(path):
    """The same, in a process of its own: a fork, which has torch already.

    No fork computes gradients where a test before has started autograd's threads.
    """
    got = None if FRAMEWORKS.search(path.read_text()) else forked(path)
    if got is not None and "autograd's threading in combination with fork" not in got:
        return got
    run = subprocess.run([sys.executable, __file__, str(path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def forked(path):
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which do not run here
        child = os.fork()
    if not child:
        status = 1
        try:
            os.close(read)
            torch.manual_seed(0)
            dtypeguard.set_mode(None)
            dtypeguard.reset_casts()
            with open(write, "w", encoding="utf-8") as out:
                out.write(printed(path))
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with open(read, encoding="utf-8") as source:
        got = source.read()
    assert os.waitpid(child, 0)[1] == 0
    return got


def same(wanted, got):
    return doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setattr(sys, "argv", ["train.py"])
    return tmp_path


@pytest.mark.docs
@pytest.mark.parametrize("path", list(pages()))
def test_a_page(path, fresh):
    every = blocks(path.read_text())
    after = [*every[1:], ("", "", 0)]
    for (kind, text, line), (next_kind, next_text, _) in zip(every, after, strict=True):
        named = NAMED.match(text)
        where = f"{path.relative_to(ROOT)}:{line}"
        if named is not None:
            file = fresh / named[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        elif kind == "python":
            file = fresh / "train.py"
            file.write_text(text)
            got = alone(file)
            wanted = next_text if next_kind == "text" else ""
            assert same(wanted, got), f"{where} prints\n{got}\nand the page says\n{wanted}"
        elif kind == "console":
            run_console(text, fresh, where)


def run_console(text, folder, where):
    commands = re.split(r"^(?=\$ )", text, flags=re.MULTILINE)
    for command in filter(None, commands):
        first, _, wanted = command.partition("\n")
        match = RUN.match(first.partition("  #")[0].rstrip())
        if match is None:
            continue
        program, *arguments = shlex.split(match[1])
        how = [] if program == "python" else ["-m", "pytest", "-p", "no:cacheprovider"]
        environment = {**os.environ, "COLUMNS": "90", "PYTHONWARNINGS": "", "PYTEST_ADDOPTS": ""}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
        run = subprocess.run(
            [sys.executable, *how, *arguments], capture_output=True, text=True, cwd=folder, env=environment
        )
        got = run.stdout + run.stderr
        assert run.returncode in (0, 1) or wanted.strip(), f"{where}: {first}\n{got}"
        assert not wanted.strip() or same(wanted, got), f"{where}: {first} prints\n{got}\nand the page says\n{wanted}"


def test_the_pages_are_found():
    assert len(list(pages())) > 5


if __name__ == "__main__":
    text = printed(Path(sys.argv[1]))
    sys.stdout.write(text)
