"""Every program in the README and in the docs runs as printed, alone, and prints what the page says.

A page has a folder of its own. In it,

- a ```python block is run, and what it prints is the ```text block behind it, if there is one: its output, its warnings
  as `line: category: text`, and the error that it ends with. `...` stands for any text;
- behind `<!-- one program -->`, the ```python blocks of the page are one file;
- ```pycon blocks are one session;
- a block whose first line is a comment with the name of a file is written to that file, and not run; behind
  `<!-- path -->` it also is what that file of the repository has;
- behind `<!-- about -->`, numbers in a ```text block may differ a little between machines;
- in a ```console block the lines after `$ python` and `$ pytest` are run, and what they print stands below them;
- examples/ is on the path.

So every ```text block is compared; what is no output stands in a block without a language.

`make docs` runs this, and builds the site before; the programs of rules are run by `test_rule_programs`,
those of errors by `test_error_pages`, those of found.md by `test_found`.
"""

import contextlib
import doctest
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import dtypeguard

pytestmark = pytest.mark.docs
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FENCE = re.compile(
    r"^(?:<!-- (?P<note>[^\n]*?) -->\n)?(?P<mark>```+)(?P<kind>\w*)\n(?P<text>.*?)^(?P=mark)$", re.MULTILINE | re.DOTALL
)
NAMED = re.compile(r"\A# (\w[\w./-]*\.(?:py|toml|ini|yml|yaml))\n")
RUN = re.compile(r"^\$ ((?:python|pytest)\b.*)$")
# Not the number of a line, and none in a name.
NUMBER = re.compile(r"(?<![\w.:])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.:]*[A-Za-z])")
WHOLE, END = "<!-- one program -->", "\0"
ABOUT = 0.3  # how much a number may differ, as a share of it
ELSEWHERE = ("rules", "errors", "_build")  # other tests run these


class Block(NamedTuple):
    note: str
    kind: str
    text: str
    line: int


def blocks(page):
    lines = (page[: match.start("mark")].count("\n") + 1 for match in FENCE.finditer(page))
    found = zip(FENCE.finditer(page), lines, strict=True)
    return [Block(match["note"] or "", match["kind"], match["text"], line) for match, line in found]


def pages():
    every = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [path for path in every if path.parent.name not in ELSEWHERE and path.name != "found.md"]


def programs():
    """The pages that have programs; a session of the reference is run with all others of it."""
    for path in pages():
        kinds = {block.kind for block in blocks(path.read_text())}
        if kinds & {"python", "console"} or ("pycon" in kinds and path.parent.name != "reference"):
            yield pytest.param(path, id=str(path.relative_to(ROOT)))


# --- programs -----------------------------------------------------------------------------------------------------


def printed(path):
    """What a program prints, the warnings that it causes, and the error that it ends with; of a session, what fails."""
    out = io.StringIO()

    def show(message, category, filename, line, *_):
        out.write(f"{os.path.basename(filename)}:{line}: {category.__name__}: {message}\n")

    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings(
            "ignore", module=r"(lightning|pytorch_lightning|transformers|accelerate)\b"
        )  # their own
        session = path.suffix == ".pycon"
        warnings.simplefilter("ignore" if session else "always", dtypeguard.DtypeGuardWarning)
        warnings.showwarning = show
        try:
            if session:
                run_session(path, out)
            else:
                runpy.run_path(str(path), run_name="__main__")
        except SystemExit:
            pass
        except Exception as error:
            out.write("".join(traceback.format_exception_only(error)))
    return out.getvalue()


def run_session(path, out):
    text = path.read_text()
    if "hypothesis" in text:
        import hypothesis

        hypothesis.settings.register_profile("docs", deadline=None)  # the first call of an operation is slow
        hypothesis.settings.load_profile("docs")
    torch.manual_seed(0)
    test = doctest.DocTestParser().get_doctest(text, {}, path.stem, str(path), 0)
    flags = doctest.ELLIPSIS | doctest.DONT_ACCEPT_TRUE_FOR_1
    doctest.DocTestRunner(optionflags=flags, verbose=False).run(test, out=out.write)
    dtypeguard.set_mode(None)
    dtypeguard.reset_casts()


# These keep a state for the whole process, which a fork would get from the tests before.
FRAMEWORKS = re.compile(r"^(?:>>> )?(?:from|import) (?:accelerate|lightning|transformers)\b", re.MULTILINE)


def alone(path):
    """The same, in a process of its own: a fork, which has torch already.

    No fork computes gradients where a test before has started autograd's threads.
    """
    got = None if FRAMEWORKS.search(path.read_text()) else forked(path)
    if got is not None and "autograd's threading in combination with fork" not in got:
        return got
    return apart(path)


def apart(*paths):
    run = subprocess.run([sys.executable, __file__, *map(str, paths)], capture_output=True, text=True)
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


def same(wanted, got, about=False):
    if about and len(NUMBER.findall(wanted)) == len(NUMBER.findall(got)):
        numbers = zip(*(map(number, NUMBER.findall(text)) for text in (wanted, got)), strict=True)
        if not all(abs(one - other) <= max(ABOUT * abs(one), 2) for one, other in numbers):
            return False
        wanted, got = (NUMBER.sub("0", text) for text in (wanted, got))
    return doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


def number(text):
    return float(text.replace(",", ""))


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setattr(sys, "argv", ["train.py"])
    return tmp_path


@pytest.mark.parametrize("path", list(programs()))
def test_a_page(path, fresh):
    every, page = blocks(path.read_text()), path.read_text()
    outputs = iter(whole(every, fresh)) if WHOLE in page else None
    for block, after in zip(every, [*every[1:], Block("", "", "", 0)], strict=True):
        where = f"{path.relative_to(ROOT)}:{block.line}"
        if is_file(block):
            write(block, fresh)
        elif block.kind == "python":
            got = next(outputs) if outputs else run(block.text, fresh / "train.py")
            wanted = after.text if after.kind == "text" else ""
            assert same(wanted, got, after.note == "about"), f"{where} prints\n{got}\nand the page says\n{wanted}"
        elif block.kind == "console":
            run_console(block, fresh, where)
    session = run(session_of(page), fresh / "session.pycon") if ">>>" in page else ""
    assert not session, session


def is_file(block):
    return block.note.endswith(".py") or NAMED.match(block.text) is not None


def write(block, folder):
    file = folder / (Path(block.note).name if block.note.endswith(".py") else NAMED.match(block.text)[1])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(block.text)


def run(text, file):
    file.write_text(text)
    return alone(file)


def whole(every, folder):
    """What the blocks of a page print that are one program."""
    for block in every:
        if is_file(block):
            write(block, folder)
    programs = [block.text for block in every if block.kind == "python" and not is_file(block)]
    return run("".join(f"{text}print({END!r}, end='')\n" for text in programs), folder / "train.py").split(END)


def session_of(page):
    """The lines of a page's sessions, where they stand."""
    kept = [""] * (page.count("\n") + 1)
    for block in blocks(page):
        if block.kind == "pycon":
            lines = block.text.splitlines()
            kept[block.line : block.line + len(lines)] = lines
    return "\n".join(kept)


def run_console(block, folder, where):
    commands = re.split(r"^(?=\$ )", block.text, flags=re.MULTILINE)
    for command in filter(None, commands):
        first, _, wanted = command.partition("\n")
        match = RUN.match(first.partition("  #")[0].rstrip())
        if match is None:
            continue
        program, *arguments = shlex.split(match[1])
        how = [] if program == "python" else ["-m", "pytest", "-p", "no:cacheprovider"]
        environment = {**os.environ, "COLUMNS": "90", "PYTHONWARNINGS": "", "PYTEST_ADDOPTS": ""}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, *how, *arguments], capture_output=True, text=True, cwd=folder, env=environment
        )
        got = done.stdout + done.stderr
        assert done.returncode in (0, 1) or wanted.strip(), f"{where}: {first}\n{got}"
        right = not wanted.strip() or same(wanted, got, block.note == "about")
        assert right, f"{where}: {first} prints\n{got}\nand the page says\n{wanted}"


def test_the_sessions_of_the_reference(fresh):
    files = []
    for path in sorted((DOCS / "reference").glob("*.md")):
        if ">>>" in path.read_text():
            files.append(fresh / f"{path.stem}.pycon")
            files[-1].write_text(session_of(path.read_text()))
    got = apart(*files)
    assert len(files) > 30
    assert not got, got


# --- pages --------------------------------------------------------------------------------------------------------


def test_every_output_is_compared():
    """What a page shows as text is what the program before it prints; files are those of the repository."""
    wrong = []
    for path in pages():
        if path.name == "comparison.md":  # test_comparison_outputs runs its programs
            continue
        every = blocks(path.read_text())
        for before, block in zip([Block("", "", "", 0), *every], every, strict=False):
            if block.kind == "text" and before.kind != "python":
                wrong.append(f"{path.relative_to(ROOT)}:{block.line}: nothing prints this")
            if block.note.endswith(".py") and block.text != (path.parent / block.note).read_text():
                wrong.append(f"{path.relative_to(ROOT)}:{block.line} is not {block.note}")
    assert wrong == []


def test_each_public_name_has_a_page():
    from dtypeguard import amp, results, testing

    named = {"amp": ["watch"], "distributed": ["check_ranks"], "results": results.__all__, "testing": testing.__all__}
    assert {name for name in vars(amp) if name[0].isalpha()} == {"watch"}
    wanted = {f"{home}.{name}" for home, names in named.items() for name in names}
    wanted |= {name for name in dtypeguard.__all__ if name not in ("amp", "distributed")}
    assert wanted - {path.stem for path in (DOCS / "reference").glob("*.md")} == set()


def test_the_reference_is_written_anew():
    done = subprocess.run([sys.executable, DOCS / "reference.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_pages_show_no_directives_and_no_roles():
    """Not on GitHub either, where the README leads."""
    raw = re.compile(r"^(?:```|:::)\{|(?:^|(?<=[\s(]))\{[\w:-]+\}`|^\([\w-]+\)=$", re.MULTILINE)
    found = {str(path.relative_to(ROOT)): raw.findall(path.read_text()) for path in all_pages()}
    assert {path: texts for path, texts in found.items() if texts} == {}


def test_links_of_the_readme_lead_somewhere_from_everywhere():
    """PyPI has it too, and not the folder."""
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def all_pages():
    return [ROOT / "README.md", *(path for path in sorted(DOCS.rglob("*.md")) if "_build" not in path.parts)]


SITE = DOCS / "_build" / "html"
HEADINGS = re.compile(r"^### `([^`]+)`(?:, `([^`]+)`)?$", re.MULTILINE)


@pytest.mark.skipif(not SITE.exists(), reason="the site is not built: make docs")
def test_a_search_finds_every_option_and_every_name():
    index = json.loads((SITE / "searchindex.js").read_text().removeprefix("Search.setIndex(").removesuffix(")"))
    titles, terms = index["alltitles"], index["terms"]
    options = {
        name
        for path in (DOCS / "reference").glob("*.md")
        if path.name.startswith(("command.", "settings", "pytest.options"))
        for names in HEADINGS.findall(path.read_text())
        for name in filter(None, names)
    }
    assert {"--fail-on", "fail-on", "per-file-ignores", "dtypeguard_baseline", "DTYPEGUARD_MODE"} <= options
    assert [name for name in sorted(options) if not any(name in title for title in titles)] == []
    assert {"dtypeguard.guard", "dtypeguard.results.Kept"} <= titles.keys()
    assert {"cast", "region"} <= terms.keys()


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        sys.argv[1:] = []
        sys.stdout.write(printed(file))
