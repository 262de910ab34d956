"""Edits: what is written for each rule's programs, that it helps, and that nothing else changes.

`python tests/test_fix.py` writes tests/golden/edits.txt anew.
"""

import difflib
import itertools
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from mending import Mended
from programs import programs

import dtypeguard
from dtypeguard._core.base.quiet import quiet
from dtypeguard._engine.watch.rule import RULES
from dtypeguard._show.report.causes import causes_of
from dtypeguard._tools.fix import search
from dtypeguard._tools.fix.code import MOVES
from dtypeguard.results import EditError

pytestmark = [
    pytest.mark.filterwarnings("ignore:Casting complex values to real"),
    pytest.mark.filterwarnings("ignore:`torch.jit.trace(_method)?` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
]
GOLDEN = Path(__file__).parent / "golden" / "edits.txt"
BAD = {f"{p.path.parent.name}-{p.path.stem}": p for p in programs("bad")}


def values_of(name):
    return True if name.startswith("DG9") else None


def mended(folder, name, data=None):
    program = BAD[name]
    return Mended(Path(folder) / "program.py", data or program.unwatched.encode(), values_of(name))


def told(name, made):
    """The edits of a program: what is done, for what, and the lines that go and come."""
    lines = [f"=== {name}"]
    for edit in made.edits:
        rules = " ".join(dict.fromkeys(finding.rule for finding in edit.findings))
        lines.append(f"{'safe' if edit.safe else 'not safe'}: {edit.does} ({rules})")
        lines += [line for line in edit.diff.splitlines() if re.match(r"[-+](?![-+]{2} )", line)]
    lines += [f"no edit: {cause.rule}" for cause in causes_of(made.last.bad)]
    return lines


@pytest.fixture(scope="module")
def all_mended(tmp_path_factory):
    """Each bad program with its edits."""
    folder, before = tmp_path_factory.mktemp("programs"), Path.cwd()
    os.chdir(folder)
    yield {name: mended(folder, name) for name in BAD}
    os.chdir(before)


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="written with torch 2.13; findings differ by version"
)
def test_what_is_written_is_what_was_looked_at(all_mended):
    lines = [line for name, made in all_mended.items() for line in told(name, made)]
    assert lines == GOLDEN.read_text().splitlines()


def test_seven_of_eight_warnings_have_an_edit(all_mended):  # one that is measured, and does not help, is none
    found = sum(len(causes_of(made.first.bad)) for made in all_mended.values())
    left = sum(len(causes_of(made.last.bad)) for made in all_mended.values())
    assert found > 240
    assert left <= 0.13 * found


def test_a_program_with_its_edits_is_clean_when_it_is_run_anew_and_has_no_edit_any_more(all_mended, tmp_path):
    for name, made in all_mended.items():
        if made.edits and not made.last.bad:
            again = mended(tmp_path, name, made.data)
            assert (again.first.bad, again.edits) == ([], []), name
            assert not again.first.error or made.first.error, name


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_moves_of_a_rule_are_moves_that_say_what_they_do(rule):
    search.ALL  # noqa: B018  # whose import enters them
    for name in (*rule.safe, *rule.unsafe):
        assert re.fullmatch(r"[A-Z][^\n]*\.", MOVES[name].__doc__ or "")
    assert not set(rule.safe) & set(rule.unsafe)


# ---------------------------------------------------------------- sources in all shapes

PRELUDE = '''\
"""Text über alles: \\f\\t."""
import functools
from typing import List

def decorated(*a): return lambda f: f

@decorated(
    1,  # one
)
def shapes(a, /, b=(yielded := 3), *c, d: "int" = 4, **e):  # type: ignore
    total = 0; more = [i for i in range(3) if i]  # type: List[int]
    text = f"{a!r:>{b}} {'nested' + f'{b}'}" \\
        "continued"
    match c:
        case (1, *rest) if rest: return rest
        case _: pass
    if more: total += 1
    else: total -= 1
    return (total,
            text)

shapes(1); functools.partial(lambda x, *, y=1: (x, y), 2)()
'''


def _tabs(text):
    return re.sub(r"(?m)^( {4})+", lambda found: "\t" * (len(found[0]) // 4), text)


def _nested(text):
    return "if True:\n    if True:\n" + re.sub(r"(?m)^(?=.)", " " * 8, text)


def _commented(text):
    return re.sub(r"(?m)(?<=[\w)\]])$", "  # `x.half()` \N{SNOWMAN}", text)


def _spaced(text):
    return re.sub(r"(?m)\(([\w.]+), ", r"( \1 ,\n     ", text)


SHAPES = {
    "as it is": lambda text: text.encode(),
    "tabs": lambda text: _tabs(text).encode(),
    "CRLF": lambda text: text.replace("\n", "\r\n").encode(),
    "a byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "latin-1": lambda text: ("# -*- coding: latin-1 -*-\nname = '\xe9\xfc'\n" + text).encode("latin-1"),
    "behind all of Python's forms": lambda text: (PRELUDE + text).encode(),
    "in blocks": lambda text: _nested(text).encode(),
    "comments": lambda text: _commented(text).encode(),
    "calls on several lines": lambda text: _spaced(text).encode(),
    "form feeds": lambda text: text.replace("\n\n", "\n\x0c\n").encode(),
    "no line end at the end": lambda text: text.rstrip("\n").encode(),
    "tabs and CRLF": lambda text: _tabs(text).replace("\n", "\r\n").encode(),
}
FORMS = [(name, shape) for shape in SHAPES for name in BAD if re.search(r"bad_[1-5]$", name)]


@pytest.mark.thin(12)
@pytest.mark.parametrize(("name", "shape"), FORMS, ids=map(" ".join, FORMS))
def test_only_what_an_edit_names_changes_in_a_source_of_any_shape(name, shape, all_mended, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = SHAPES[shape](BAD[name].unwatched)
    try:
        compile(data, "program.py", "exec")
    except SyntaxError:
        pytest.skip("this program has no such shape")
    made = mended(tmp_path, name, data)
    before = data
    for edit in made.edits:
        (file,) = edit.after
        assert edit.before[file] == before
        assert replaced(before, edit.replacements, first=data) == edit.after[file]
        before = edit.after[file]
    assert line_ends(before) <= line_ends(data)
    assert before[:3] == data[:3] or data[:3] != b"\xef\xbb\xbf"
    gone, come = changed(data, before)
    assert len(gone) + len(come) <= 40
    if shape == "tabs":
        assert not [line for line in come if line.startswith(b" ")]
    if shape not in ("calls on several lines",):
        assert len(made.last.bad) == len(all_mended[name].last.bad)


def replaced(data, replacements, first):
    """The bytes with replacements, which speak of the file as it was first."""
    if data != first:
        return _Any()
    mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    lines = data.removeprefix(mark).split(b"\n")
    starts = [0, *itertools.accumulate(len(line) + 1 for line in lines)]
    code = "latin-1" if b"latin-1" in data else "utf-8"
    out, last, body = [], 0, data.removeprefix(mark)
    for one in replacements:
        begin, end = starts[one.line - 1] + one.column, starts[one.end_line - 1] + one.end_column
        out += [body[last:begin], one.text.encode(code)]
        last = end
    return mark + b"".join([*out, body[last:]])


class _Any:
    def __eq__(self, other):
        return True

    __hash__ = None


def line_ends(data):
    return {found[0] for found in re.finditer(rb"\r\n|\r|\n", data)}


def changed(before, after):
    rows = list(
        difflib.ndiff(
            before.split(b"\n") and [repr(x) for x in before.split(b"\n")], [repr(x) for x in after.split(b"\n")]
        )
    )
    gone = [eval(row[2:]) for row in rows if row.startswith("- ")]
    come = [eval(row[2:]) for row in rows if row.startswith("+ ")]
    return gone, come


# ---------------------------------------------------------------- a report's own edits

DISCARDED = "import torch\n\nx = torch.ones(3)\nx.half()\ny = x * 2\n"


def report_of(path, source=DISCARDED):
    path.write_text(source)
    with dtypeguard.audit() as report:
        exec(compile(source, path, "exec"), {"__name__": "__main__"})
    return report


def test_a_report_has_edits_that_nobody_has_run_and_writes_the_safe_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = report_of(tmp_path / "program.py")
    (edit,) = report.edits
    assert (edit.path, edit.safe, edit.proven, edit.does) == ("program.py", True, False, "keeps the result of the cast")
    assert [finding.rule for finding in edit.findings] == ["DG103"]
    assert "+x = x.half()" in edit.diff.splitlines()
    assert [row["diff"] for row in report.to_dict()["diffs"]] == [edit.diff]
    assert "Copy the diff" in report.to_html()
    with pytest.raises(TypeError, match="unsafe='x' is neither True nor False"):
        report.apply("x")
    assert report.apply() == [str(tmp_path / "program.py")]
    assert (tmp_path / "program.py").read_text() == DISCARDED.replace("x.half()", "x = x.half()")
    assert report.apply() == []


def test_reports_behind_an_edit_quote_the_lines_that_were_loaded(tmp_path):
    source = "import torch\nx = torch.ones(3)\nx.half()\ndef kept(z):\n    z.half()\n    return z\n"
    (tmp_path / "program.py").write_text(source)
    program = {}
    with dtypeguard.audit() as first:
        exec(compile(source, tmp_path / "program.py", "exec"), program)
    assert first.apply()
    with dtypeguard.audit() as second:
        program["kept"](torch.ones(3))
    assert [finding.source for finding in second.findings] == ["z.half()"]


def test_an_edit_is_shown_in_a_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text("import torch\nx = torch.ones(3)\nx.half()\n")
    with dtypeguard.audit() as report:
        exec(compile(Path("program.py").read_text(), "program.py", "exec"), {})
    edit = "<edit of program.py: deletes the cast that nothing reads (safe, not proven): removes DG103 at program.py:3>"
    assert repr(report.edits) == f"[{edit}]"


def test_a_file_that_has_changed_is_left_alone(tmp_path):
    report = report_of(tmp_path / "program.py")
    assert report.edits
    (tmp_path / "program.py").write_text(DISCARDED + "# more\n")
    with pytest.raises(EditError, match="has changed since the program ran: nothing is written"):
        report.apply()
    assert (tmp_path / "program.py").read_text() == DISCARDED + "# more\n"


def test_a_file_keeps_its_mode(tmp_path):
    report = report_of(tmp_path / "program.py")
    (tmp_path / "program.py").chmod(0o751)
    report.apply()
    assert (tmp_path / "program.py").stat().st_mode & 0o777 == 0o751


def test_edits_of_a_running_audit_are_refused():
    with dtypeguard.audit() as report, pytest.raises(RuntimeError, match="still running: read edits after the block"):
        report.edits  # noqa: B018


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, quiet():
        os.chdir(name)
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        GOLDEN.write_text("".join(f"{line}\n" for bad in BAD for line in told(bad, mended(name, bad))))
