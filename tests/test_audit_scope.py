"""Only my code: `source=` and `omit=` say whose lines an audit reports."""

import sys
import textwrap

import pytest
import torch

import dtypeguard
from dtypeguard.__main__ import main

PACKAGE = """
import numpy as np
import torch
from torch import nn

class Scale(nn.Module):
    def forward(self, x):
        table = torch.from_numpy(np.linspace(0, 1, x.shape[-1]))
        return x * table

def lost(x):
    x.half()
    return x

def refuses(x):
    return x @ x.half()
"""
MINE = """
import torch
import theirs
from theirs import Scale

scale = Scale()

def own(x):
    x.half()

def scaled(x):
    return scale(x)

def calls(x):
    return theirs.lost(x)

def calls_too(x):
    return theirs.lost(x)

def refused(x):
    return theirs.refuses(x)

def follows(x):
    return (theirs.lost(x).exp() * 1e30).sum()
"""
SCRIPT = """
import mine

def run(x):
    x.half()
    return mine.scaled(x)
"""
FILES = {"site-packages/theirs/__init__.py": PACKAGE, "src/mine/__init__.py": MINE, "script.py": SCRIPT}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project of two files, and a package that is installed; `line` gives the number of a line."""
    for path, text in FILES.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    for folder in ("site-packages", "src", "."):
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    yield tmp_path
    for name in ("theirs", "mine", "script"):
        sys.modules.pop(name, None)


def places(report):
    return {f"{finding.rule} {finding.function} {finding.file.rpartition('/')[2]}" for finding in report.findings}


def audited(calls, **options):
    import mine
    import script

    with dtypeguard.audit(**options) as report:
        for name in calls.split():
            getattr(script if name == "run" else mine, name)(torch.ones(3))
    return report


@pytest.mark.parametrize(
    ("calls", "options", "expected"),
    [
        ("own scaled", {}, {"DG103 own __init__.py", "DG101 forward __init__.py"}),
        ("own scaled", {"source": "src"}, {"DG103 own __init__.py", "DG101 scaled __init__.py"}),
        ("own scaled", {"source": ["src/mine/__init__.py"]}, {"DG103 own __init__.py", "DG101 scaled __init__.py"}),
        ("own scaled", {"source": ["mine"]}, {"DG103 own __init__.py", "DG101 scaled __init__.py"}),
        ("scaled", {"source": "theirs"}, {"DG101 forward __init__.py"}),
        ("run", {"source": "script"}, {"DG103 run script.py", "DG101 run script.py"}),
        ("run", {"source": "src"}, {"DG101 scaled __init__.py"}),  # its own line is nobody's
        ("own run", {"omit": "script.py"}, {"DG103 own __init__.py", "DG101 scaled __init__.py", "DG103 audited"}),
        ("own run", {"source": ".", "omit": ["src/**"]}, {"DG103 run script.py", "DG101 run script.py"}),
        ("calls calls_too", {"source": "src"}, {"DG103 calls __init__.py", "DG103 calls_too __init__.py"}),
    ],
)
def test_what_other_code_does_is_told_at_the_line_that_led_there(project, calls, options, expected):
    found = places(audited(calls, **options))
    assert {place.replace(" test_audit_scope.py", "") for place in found} == expected


def test_both_lines_are_shown(project):
    report = audited("scaled", source="src")
    (finding,) = report.findings
    told, fault, born = finding.spots
    assert (told.source.strip(), fault.source.strip()) == ("return scale(x)", "return x * table")
    assert born.label == "float64 is born here"
    assert told.label == f"leads to {fault.path}:{fault.line}"
    assert finding.edit is told
    assert finding.fix.startswith(f"at {born.path}:{born.line}: ")
    assert finding.source == "return scale(x)"
    finding.severity = "info"
    assert f", leads to {fault.path}:{fault.line}" in str(report)


def test_a_refusal_is_told_at_my_line(project):
    import mine

    with pytest.raises(RuntimeError), dtypeguard.audit(source="src") as report:
        mine.refused(torch.ones(3))
    assert places(report) == {"DG110 refused __init__.py"}


def test_values_are_told_at_my_line(project):
    import mine

    text = MINE.replace("theirs.lost(x).exp() * 1e30", "torch.relu(x)")
    assert text != MINE
    with dtypeguard.audit(source="src", values="range") as report:
        mine.follows(torch.full((3,), 80.0, dtype=torch.float32))
    (finding,) = [finding for finding in report.findings if finding.rule.startswith("DG9")]
    assert finding.function == "follows"


def test_a_comment_at_my_line_counts(project):
    file = project / "src/mine/__init__.py"
    file.write_text(MINE.replace("return scale(x)", "return scale(x)  # dtypeguard: ignore[DG101]"))
    assert not audited("scaled", source="src").findings


def test_casts_are_told_at_my_line(project):
    assert {cast.site for cast in audited("scaled", source="src").casts} == {"src/mine/__init__.py:12, in scaled"}


def test_pyproject_says_it_for_everybody(project):
    (project / "pyproject.toml").write_text('[tool.dtypeguard]\nsource = ["src"]\n')
    assert places(audited("scaled")) == {"DG101 scaled __init__.py"}
    assert places(audited("scaled", source="theirs")) == {"DG101 forward __init__.py"}


def test_the_command(project, capsys):
    (project / "main.py").write_text("import torch, mine\nmine.scaled(torch.ones(3))\ntorch.ones(3).half()\n")
    assert main(["audit", "--source", "src,theirs", "--omit", "site-packages/**", "--no-casts", "main.py"]) == 1
    out = capsys.readouterr().out
    assert "--> src/mine/__init__.py:12 in scaled" in out
    assert "main.py:3" not in out


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"source": "srcc"}, r"source='srcc' is neither a folder or file below .* nor a package"),
        ({"source": "no.such.package"}, "source='no.such.package' is neither"),
        ({"source": 3}, "source takes"),
        ({"omit": [3]}, "omit takes"),
        ({"omit": [""]}, "omit='' names nothing"),
        ({"omit": ""}, "omit='' names nothing"),
        ({"source": ""}, "source='' names nothing"),
        ({"sources": "src"}, r"there is no option sources=: did you mean source=\?"),
    ],
)
def test_bad_input(project, options, error):
    with pytest.raises((TypeError, ValueError), match=error):
        dtypeguard.audit(**options)


def test_bad_input_in_pyproject(project):
    (project / "pyproject.toml").write_text(textwrap.dedent('[tool.dtypeguard]\nsource = ["srcc"]\n'))
    with pytest.raises(ValueError, match=r"pyproject.toml:2: \[tool.dtypeguard\] source='srcc' is neither"):
        dtypeguard.audit()
