"""Which rules are on: arguments, pyproject.toml, comments."""

import codecs
import contextlib
import runpy
import textwrap

import pytest
import torch

import dtypeguard
from dtypeguard._engine.watch.rule import RULES, Severity
from dtypeguard._engine.watch.selection import Selection, comments, reaches

ALL = frozenset(RULES)
DG3, DG4 = ({rule for rule in RULES if rule.startswith(family)} for family in ("DG3", "DG4"))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Writes the pyproject.toml of a project, and goes there."""
    monkeypatch.chdir(tmp_path)

    def write(table="", file="pyproject.toml"):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[project]\nname = 'theirs'\n\n[tool.dtypeguard]\n{textwrap.dedent(table)}")
        return path

    write.folder = tmp_path
    return write


# --- arguments over file


@pytest.mark.parametrize(
    ("table", "arguments", "expected"),
    [
        ("", {}, ALL),
        ("", {"rules": ["DG3"]}, DG3),
        ("", {"rules": "DG3"}, DG3),
        ("", {"rules": ["unscale-twice", "DG404"]}, {"DG310", "DG404"}),
        ("", {"rules": []}, set()),
        ("", {"ignore": ["DG3"]}, ALL - DG3),
        ("", {"ignore": "unscale-twice"}, ALL - {"DG310"}),
        ("", {"rules": ["DG3"], "ignore": ["DG310"]}, DG3 - {"DG310"}),
        ("", {"rules": ["DG310"], "ignore": ["DG3"]}, set()),  # `ignore` beats `rules`
        ("select = ['DG3']", {}, DG3),
        ("select = []", {}, set()),
        ("select = ['DG3', 'eps-is-zero']", {}, DG3 | {"DG404"}),
        ("ignore = ['DG3']", {}, ALL - DG3),
        ("select = ['DG3']\nignore = ['DG310']", {}, DG3 - {"DG310"}),
        ("select = ['DG3']", {"rules": ["DG4"]}, DG4),  # an argument stands in place of the file
        ("ignore = ['DG310']", {"rules": ["DG3"]}, DG3),
        ("select = ['DG3']\nignore = ['DG310']", {"ignore": ["DG311"]}, DG3 - {"DG310", "DG311"}),  # and adds to it
    ],
)
def test_what_is_selected(project, table, arguments, expected):
    project(table)
    assert Selection.read(**arguments).rules == expected


def test_without_a_file_everything_is_on(tmp_path):
    selection = Selection.read(folder=tmp_path)
    assert (selection.rules, selection.severity, selection.per_file) == (ALL, Severity.INFO, ())


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            {"rules": ["DG999"]},
            ValueError,
            r"select='DG999' is no rule: use ids or names, such as DG101, .*DG3",
        ),
        ({"ignore": ["nonsense"]}, ValueError, r"ignore='nonsense' is no rule"),
        ({"ignore": "DG"}, ValueError, r"ignore='DG' is no rule"),
        ({"ignore": [""]}, ValueError, r"ignore='' is no rule"),
        ({"rules": [301]}, TypeError, r"select takes rule ids such as 'DG301', not 301 \(int\)"),
        ({"ignore": 3}, TypeError, r"ignore takes rule ids"),
    ],
)
def test_arguments_that_are_wrong(tmp_path, arguments, kind, message):
    with pytest.raises(kind, match=message):
        Selection.read(**arguments, folder=tmp_path)


# --- which file


def test_the_nearest_file_with_the_table_counts(project):
    outer = project("select = ['DG3']")
    inner = project("select = ['DG4']", "a/b/pyproject.toml")
    assert Selection.read(folder=project.folder / "a").file == outer
    assert Selection.read(folder=inner.parent).rules == DG4
    assert Selection.read(folder=inner.parent / "deeper" / "still").file == inner  # need not exist


@pytest.mark.parametrize("text", ["", "[project]\nname='x'\n", "[tool.ruff]\n", "tool = 3\n"])
def test_a_file_without_the_table_is_passed_over(project, text):
    outer = project("select = ['DG3']")
    (project.folder / "inner").mkdir()
    (project.folder / "inner" / "pyproject.toml").write_text(text)
    assert Selection.read(folder=project.folder / "inner").file == outer


def test_an_empty_table_ends_the_search(project):
    project("select = ['DG3']")
    inner = project("", "inner/pyproject.toml")
    assert Selection.read(folder=inner.parent).rules == ALL


def test_the_current_folder_may_be_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert Selection.read().rules == ALL


def test_a_table_whose_name_is_misspelt_is_named_once(tmp_path, recwarn):
    file = tmp_path / "pyproject.toml"
    file.write_text("[tool.typeguard]\n[tool.ruff]\n[tool.dtypegaurd]\nselect = ['DG3']\n")
    for _ in range(2):
        assert Selection.read(folder=tmp_path).rules == ALL
    (said,) = recwarn
    assert str(said.message) == "[tool.dtypegaurd] is not read (did you mean [tool.dtypeguard]?)"
    assert (said.filename, said.lineno) == (str(file), 3)


# --- what is wrong in a file


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("selct = ['DG3']", r"has no key 'selct' \(did you mean 'select'\?\): use select, ignore, severity, per-file-"),
        ("nonsense = 1", r"has no key 'nonsense': use select, ignore"),
        ("extend-ignore = []", r"has no key 'extend-ignore'.*: use select, ignore"),
        ("select = 'DG3'", r"select='DG3' is not a list of rules, as in \['DG102', 'DG5'\]"),
        ("select = [3]", r"select=3 is not a list of rules"),
        ("ignore = ['DG3', ['DG4']]", r"ignore=\['DG4'\] is not a list of rules"),
        ("ignore = {DG3 = true}", r"ignore=.* is not a list of rules"),
        ("ignore = ['DG999']", r"ignore='DG999' is no rule: use ids or names, such as DG101, or .*DG3, DG4"),
        ("severity = 'fatal'", r"severity='fatal' is not a severity: use one of 'info', 'warning', 'error'"),
        ("severity = 'warn'", r"severity='warn' is not a severity \(did you mean 'warning'\?\): use one of"),
        ("ignore = ['integer-overflow']", r"is no rule \(did you mean 'integer-wraps'\?\)"),
        ("ignore = ['DG3O9']", r"ignore='DG3O9' is no rule \(did you mean 'DG309'\?\): use ids or names"),
        ("severity = 2", r"severity=2 is not a severity"),
        ("severity = ['info']", r"severity=\['info'\] is not a severity"),
        ("severity = {}", r"severity=\{\} is not a severity"),
        ("per-file-ignores = ['DG3']", r"per-file-ignores=\['DG3'\] is not a table"),
        ("per-file-ignores = {'a/*' = 'DG3'}", r"per-file-ignores.'a/\*'='DG3' is not a list"),
        ("per-file-ignores = {'a/*' = ['DG999']}", r"per-file-ignores.'a/\*'='DG999' is no rule"),
    ],
)  # fmt: skip
def test_a_table_that_is_wrong(project, table, message):
    path = project(table)
    with pytest.raises(ValueError, match=message) as raised:
        Selection.read()
    assert str(raised.value).startswith(f"{path}:5: [tool.dtypeguard] ")


@pytest.mark.parametrize(
    "data",
    [
        b"[tool.dtypeguard\n",
        b"[tool.dtypeguard]\nselect = [",
        b"name = 'caf\xe9'\n",  # Latin-1
        codecs.BOM_UTF16_LE + "x = 1".encode("utf-16-le"),
        b"\x00\x01\x02",
    ],
)
def test_a_file_that_is_no_toml(project, data):
    path = project()
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"is no valid TOML: ") as raised:
        Selection.read()
    assert str(path) in str(raised.value)


# --- severity


@pytest.mark.parametrize(
    ("severity", "least", "expected"),
    [("info", "info", True), ("info", "warning", False), ("error", "warning", True), ("warning", "error", False)],
)
def test_severities_are_ordered(severity, least, expected):
    assert reaches(severity, least) is expected
    assert reaches(Severity(severity), Severity(least)) is expected


def test_what_is_below_the_lowest_severity_is_not_reported(project):
    project("severity = 'warning'")
    selection = Selection.read()
    assert not selection.on("DG304")  # information
    assert selection.on("DG303")
    assert selection.on("DG304", severity=Severity.WARNING)  # worse than its rule, this time
    assert not selection.on("DG303", severity=Severity.INFO)


# --- per-file-ignores


@pytest.mark.parametrize(
    ("pattern", "file", "ignored"),
    [
        ("tests/*", "tests/test_a.py", True),
        ("tests/*", "tests/deep/er/test_a.py", True),  # `*` crosses folders
        ("tests/**", "tests/deep/test_a.py", True),
        ("tests/**/*.py", "tests/test_a.py", True),  # `/**/` may stand for none
        ("tests/**/*.py", "tests/a/b/test_a.py", True),
        ("tests/*", "src/tests/test_a.py", False),
        ("tests/*", "mytests/a.py", False),
        ("**/tests/*", "src/tests/a.py", True),
        ("**/tests/*", "tests/a.py", True),
        ("test_*.py", "src/deep/test_a.py", True),  # by name
        ("test_*.py", "src/test_a/b.py", False),
        ("a.py", "src/a.py", True),
        ("src/a.py", "src/a.py", True),
        ("src/a.py", "a.py", False),
        ("{tests,examples}/**", "examples/a.py", True),
        ("{tests,examples}/**", "src/a.py", False),
        ("*.{py,ipynb}", "src/a.ipynb", True),
        ("{a,b}/{c,d}.py", "b/c.py", True),
        ("{a,{b,c}}/*", "c/d.py", True),
        ("!src/*", "tests/a.py", True),
        ("!src/*", "src/a.py", False),
        ("!{src,lib}/*", "lib/a.py", False),
        ("tests/[ab].py", "tests/a.py", True),
        ("tests/[ab].py", "tests/c.py", False),
        ("TESTS/*", "tests/a.py", False),
        ("{tests/*", "tests/a.py", False),  # not closed: as it stands
    ],
)
def test_per_file_ignores(project, pattern, file, ignored):
    project(f"per-file-ignores = {{'{pattern}' = ['DG310']}}")
    selection = Selection.read()
    path = str(project.folder / file)
    assert selection.on("DG310", path) is not ignored
    assert selection.on("DG310", file) is not ignored  # relative, as some compilers name files
    assert selection.on("DG311", path)


@pytest.mark.parametrize(
    ("pattern", "left"),
    [("data.py", 0), ("other.py", 1)],
)
def test_the_file_of_the_line_to_change_counts_as_well_as_that_of_the_one_that_shows_it(project, pattern, left):
    project(f"per-file-ignores = {{'{pattern}' = ['float64-creep']}}")
    data, space = project.folder / "data.py", {}
    data.write_text("import torch\ndef table():\n    return torch.from_numpy(__import__('numpy').ones(3))\n")
    exec(compile(data.read_text(), data, "exec"), space)
    layer = torch.nn.Linear(3, 1)
    with dtypeguard.audit(select="DG101") as report, contextlib.suppress(RuntimeError):
        layer(space["table"]())
    assert len(report.findings) == left


def test_patterns_begin_at_the_file_s_folder_whatever_its_name(project, monkeypatch):
    inner = project("per-file-ignores = {'a/*' = ['DG3']}\n", "odd [x] {y} name*/pyproject.toml").parent
    monkeypatch.chdir(inner)
    selection = Selection.read()
    assert not selection.on("DG310", str(inner / "a" / "b.py"))
    assert selection.on("DG310", str(project.folder / "a" / "b.py"))


# --- comments


def ignored(source, line):
    return comments(textwrap.dedent(source).lstrip("\n").splitlines(keepends=True)).off.get(line, frozenset())


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("# dtypeguard: ignore", ALL),
        ("#dtypeguard:ignore", ALL),
        ("#  DtypeGuard:  Ignore  ", ALL),
        ("# dtypeguard: ignore because it is meant", ALL),
        ("# dtypeguard: ignore # really", ALL),
        ("# dtypeguard: ignore[DG310]", {"DG310"}),
        ("# dtypeguard: ignore[DG310, DG404]", {"DG310", "DG404"}),
        ("# dtypeguard: ignore[DG310 DG404,]", {"DG310", "DG404"}),
        ("# dtypeguard: ignore[DG3]", DG3),
        ("# dtypeguard: ignore[dg310, Unscale-Twice]", {"DG310"}),
        ("# dtypeguard: ignore [ DG310 ]", {"DG310"}),
        ("# dtypeguard: ignore[unscale-twice]", {"DG310"}),
        ("# dtypeguard: ignore[DG310]  # it is meant", {"DG310"}),
        ("# type: ignore[misc]  # dtypeguard: ignore[DG310]  # noqa: E501", {"DG310"}),
        ("# dtypeguard: ignore[DG310]  # dtypeguard: ignore[DG404]", {"DG310", "DG404"}),
        ("# dtypeguard: ignore[DG310, DG999, nonsense]", {"DG310"}),  # what there is not ignores nothing
        ("# dtypeguard: ignore[DG999]", set()),
        ("# dtypeguard: ignore[]", set()),
        ("# dtypeguard: ignore[DG310", set()),  # slips, which must not ignore everything
        ("# dtypeguard: ignore [DG310", set()),
        ("# dtypeguard: ignore: DG310", set()),
        ("# dtypeguard: ignore(DG310)", set()),
        ("# dtypeguard: ignored", set()),
        ("# dtypeguard: ignore-me", set()),
        ("# dtypeguard ignore", set()),
        ("# dtypeguards: ignore", set()),
        ("# mydtypeguard: ignore", set()),
        ("# noqa", set()),
    ],
)
def test_comments(comment, expected):
    assert ignored(f"x = 1  {comment}\ny = 2\n", 1) == expected
    assert ignored(f"x = 1  {comment}\ny = 2\n", 2) == set()


@pytest.mark.parametrize(
    ("comment", "says"),
    [
        ("# dtypeguard: ignore[DG999]", "'DG999' is no rule"),
        ("# dtypeguard: ignore[DG101, discard-cast]", "'discard-cast' is no rule (did you mean 'discarded-cast'?)"),
        ("# dtypeguard: ingore[DG103]", "`# dtypeguard: ingore[DG103]` ignores nothing: write `# dtypeguard: ignore["),
        ("# dtypeguard: ignore: dg103  # meant", "nothing: write `# dtypeguard: ignore[DG103]`"),
        ("# dtypeguard: ignore[dg101]", None),
        ("# dtypeguard: see the docs", None),
    ],
)
def test_what_is_misspelt_in_a_comment_is_told_with_findings(comment, says, tmp_path):
    file = tmp_path / "a.py"
    file.write_text(f"def f(x):\n    x.half()  {comment}\n    return x.half()\n")
    script = runpy.run_path(str(file))
    with dtypeguard.audit() as report:
        script["f"](torch.ones(2))
    told = " ".join(str(report).split())
    assert told.count("a.py:2: in a comment, ") == (says is not None)
    assert says is None or says in told


MULTILINE = """
    x = f(  # dtypeguard: ignore[DG301]
        a,
        g(b),  # dtypeguard: ignore[DG302]
        # dtypeguard: ignore[DG303]
        c,
    )  # dtypeguard: ignore[DG304]
    y = 1
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (1, {"DG301", "DG304"}),  # what stands on the first or the last line counts for the whole statement
        (2, {"DG301", "DG304"}),
        (3, {"DG301", "DG302", "DG304"}),  # between them for its own line
        (4, {"DG301", "DG303", "DG304"}),
        (6, {"DG301", "DG304"}),
        (7, set()),
    ],
)
def test_a_statement_on_several_lines(line, expected):
    assert ignored(MULTILINE, line) == expected


@pytest.mark.parametrize(
    "source",
    [
        'x = "# dtypeguard: ignore"',
        "x = '''\n# dtypeguard: ignore\n'''",
        "x = '''\n# dtypeguard: ignore'''",
        'def f():\n    """Write `# dtypeguard: ignore` on the line."""',
        "# dtypeguard: ignore\nx = 1",  # on a line of its own it belongs to nothing
        "if x:\n    # dtypeguard: ignore\n    y = 1",
        "\n# dtypeguard: ignore\n\nx = 1",
        "x = f'{a} # dtypeguard: ignore'",
        "x = r'# dtypeguard: ignore'; y = 1",
    ],
)
def test_what_is_no_comment_of_a_line(source):
    lines = textwrap.dedent(source).splitlines(keepends=True)
    found = comments(lines).off
    assert [number for number, line in enumerate(lines, 1) if found.get(number) and "ignore" not in line] == []
    assert not any(found.get(number) for number, line in enumerate(lines, 1) if not line.strip().startswith("#"))


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = '''\ntext\n'''  # dtypeguard: ignore[DG310]", 1),
        ("x = a + \\\n    b  # dtypeguard: ignore[DG310]", 1),
        ("with f(  # dtypeguard: ignore[DG310]\n    a\n):\n    pass", 2),
        ("if x: y = 1  # dtypeguard: ignore[DG310]", 1),
        ("x = 1; y = 2  # dtypeguard: ignore[DG310]", 1),
        ("@f(a)  # dtypeguard: ignore[DG310]\ndef g(): pass", 1),
        ("class A:\n\n\tx = 1  # dtypeguard: ignore[DG310]", 3),
        ("x = 1  # dtypeguard: ignore[DG310]", 1),  # no newline at the end
        ("x = 1  # dtypeguard: ignore[DG310]\r\ny = 2\r\n", 1),
        ("x = 'é\u2028'  # dtypeguard: ignore[DG310]\n", 1),
        ("x = 1  # dtypeguard: ignore[DG310]\n%matplotlib inline\ny = (\n", 1),  # what follows is no Python
        ("x = 1  # dtypeguard: ignore[DG310]\n  y = 1\n z = 1\n", 1),
    ],
)
def test_a_comment_counts(source, line):
    assert comments(source.split("\n") if "\u2028" in source else source.splitlines(keepends=True)).off.get(line) == {
        "DG310"
    }


def test_a_statement_that_follows_a_comment_inside_a_body_is_not_ignored():
    assert ignored("def f():\n    # dtypeguard: ignore\n    return 1\n", 3) == set()


# --- lines of files


@pytest.mark.parametrize("file", ["", "<string>", "<stdin>", "/no/such/file.py", "\0", "a" * 5000])
def test_a_file_that_is_not_there_ignores_nothing(file):
    assert Selection().on("DG310", file, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"x = 1  # dtypeguard: ignore[DG310] \xe9\n",  # not UTF-8
        b"# -*- coding: nonsense -*-\nx = 1  # dtypeguard: ignore[DG310]\n",
        b"\xff\xfe# dtypeguard: ignore",
        b"",
    ],
)
def test_a_file_that_is_no_python_ignores_nothing(tmp_path, data):
    file = tmp_path / "bad.py"
    file.write_bytes(data)
    assert Selection().on("DG310", str(file), 1)
    assert Selection().on("DG310", str(file), 999)


def test_comments_of_a_file_are_read_once(tmp_path, monkeypatch):
    file = tmp_path / "a.py"
    file.write_text("x = 1  # dtypeguard: ignore[DG310]\n")
    selection, reads = Selection(), []
    monkeypatch.setattr("dtypeguard._engine.watch.selection.comments", lambda lines: reads.append(1) or comments(lines))
    assert not any(selection.on("DG310", str(file), 1) for _ in range(5))
    assert len(reads) == 1


def test_a_file_that_was_edited_is_read_anew_by_the_next_audit(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("x = 1\n")
    assert Selection().on("DG310", str(file), 1)
    file.write_text("x = 1  # dtypeguard: ignore[DG310]\n")
    assert not Selection().on("DG310", str(file), 1)
