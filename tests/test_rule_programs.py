"""The programs beside each rule: what is bad is found at its line, what is good is not, in each way of watching.

A program runs alone first; watched it must compute the same, to the bit.
"""

import contextlib
import json
import re
import warnings

import pytest
import torch
import warm
from programs import FOLDER, programs
from support import same
from torch import nn

import dtypeguard
from dtypeguard import AmpError, AmpWarning
from dtypeguard._engine.watch.rule import RULES

pytest_plugins = ["pytester"]
pytestmark = [  # what PyTorch says itself of some programs, the first only once in a process
    pytest.mark.filterwarnings("ignore:Casting complex values to real"),
    pytest.mark.filterwarnings("ignore:`torch.jit.trace(_method)?` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
]
BAD, GOOD = (
    [pytest.param(RULES[p.path.parent.name], p, id=f"{p.path.parent.name}-{p.path.stem}") for p in programs(kind)]
    for kind in ("bad", "good")
)
WATCHED = ("DG3", "DG4")  # by `amp.watch` too
ALIKE = ("warning", "error")


def those(rows, families):
    return [row for row in rows if row.values[0].id.startswith(families)]


@pytest.fixture(autouse=True)
def as_before(tmp_path, monkeypatch):
    """Each program runs in an empty folder, and leaves torch as it was."""
    monkeypatch.chdir(tmp_path)
    dtype, state = torch.get_default_dtype(), torch.get_rng_state()
    yield
    torch.set_default_dtype(dtype)
    torch.set_rng_state(state)


def script(path, source):
    path.write_text(source)
    return path


def run(path, audit=None):
    """What a program leaves in its names; the exception that ended it, and that went through the audit, among them."""
    torch.manual_seed(0)
    names = {"__name__": "__main__", "__file__": str(path)}
    try:
        with audit or contextlib.nullcontext():
            exec(compile(path.read_text(), path, "exec"), names)
    except AmpError:
        raise
    except Exception as error:
        names["exception"] = f"{type(error).__name__}: {error}"
    return names


def left(names):
    """The tensors among them."""
    values = {name: v.state_dict() if isinstance(v, nn.Module) else v for name, v in names.items()}
    kept = (torch.Tensor, dict, list, tuple, str, float, int)
    return {name: v for name, v in values.items() if isinstance(v, kept) and not name.startswith("__")}


def values_of(rule):
    """How an audit looks at values, for a rule."""
    return True if rule.id.startswith("DG9") else None


def audited(tmp_path, source, values=None):
    """The report on a program, which computes what it computes alone."""
    path = script(tmp_path / "program.py", source)
    dtype, alone = torch.get_default_dtype(), left(run(path))
    torch.set_default_dtype(dtype)
    audit = dtypeguard.audit(values=values)
    assert same(alone, left(run(path, audit)))
    assert audit.report.faults == []
    return audit.report


def lines_of(findings, rule):
    return {int(re.search(r":(\d+)", finding.site)[1]) for finding in findings if finding.rule == rule.id}


def test_rules_are_those_that_have_programs():
    assert sorted(folder.name for folder in FOLDER.iterdir()) == sorted(RULES)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_has_programs_on_both_sides(rule):
    assert len(programs("bad", rule.id)) >= 3
    assert len(programs("good", rule.id)) >= 3
    assert programs("bad", rule.id)[0].fix
    assert rule.summary.endswith(".")
    assert "{" not in rule.summary


def pasted(source, fix, line):
    """The program with the fix written into it: `x.to(...)` for x, `x = ...` for the same without; None for words."""
    codes = re.findall(r"`([^`]+)`(?! rounds)", fix)  # what rounds is there already
    if "` before the conversion, and `" in fix:
        lines = source.splitlines()
        return "\n".join([*lines[: line - 1], *codes[:-1], lines[line - 1], codes[-1], *lines[line:]])
    if "in place of the line, `" in fix:
        lines = source.splitlines()
        casts = "cast only what is made" in fix  # and that is in words
        return None if casts else "\n".join([*lines[: line - 1], *codes, "del kept", *lines[line:]])
    if len(codes) == 2 and "in place of" in fix and codes[1] in source:
        return source.replace(codes[1], codes[0], 1)
    if fix.startswith("keep ") and len(codes) == 1 and "float32" in codes[0]:  # where the total is made
        line = next((one for one in source.splitlines() if codes[0].replace("float32", "bfloat16") in one), None)
        return line and source.replace(line, line.replace("bfloat16", "float32"))
    if "leave out the cast of `" in fix:
        return source.replace(codes[0], codes[0].rpartition(".to(" if ".to(" in codes[0] else ".")[0], 1)
    if len(codes) != 1:  # one of several alternatives has to be chosen
        return None
    kept = re.fullmatch(r"[\w.]+ = (.+)", codes[0])
    if kept is not None:  # a statement whose result is thrown away
        return re.sub(rf"(?m)^(\s*){re.escape(kept[1])}$", rf"\1{codes[0]}", source) if kept[1] in source else None
    cast = re.fullmatch(r"(.+)\.(?:to\(.*\)|(?:float|bool|half|double)\(\))", codes[0])
    pattern = rf"(?<![\w.]){re.escape(cast[1])}(?![\w.]|\s*=[^=])" if cast else "(?!)"
    in_def = re.compile(r".*\bdef [^\n]*")
    places = re.finditer(pattern, source)
    used = next((p for p in places if not in_def.match(source, source.rfind("\n", 0, p.start()) + 1)), None)
    return source[: used.start()] + codes[0] + source[used.end() :] if used else None


@pytest.mark.parametrize(("rule", "program"), BAD)
def test_a_fault_is_found_by_an_audit_and_a_fix_that_is_an_edit_helps_when_it_is_pasted(rule, program, tmp_path):
    """With the edit the finding goes, and none of another rule comes. A fix in words is nothing to paste."""
    report = audited(tmp_path, program.unwatched, values_of(rule))
    found = [finding for finding in report.findings if finding.rule == rule.id and finding.line == program.line]
    # torch < 2.13: its old name; goes with that floor
    messages = [f.message.replace("at::Half", "c10::Half") for f in found]
    assert messages == [program.message] or (len(messages) == 1 and program.expects(messages[0])), report.findings
    assert len({*found[0].origin}) == len(found[0].origin)
    assert found[0].severity == (program.severity or rule.severity.value)
    assert not program.fix or found[0].fix.replace(f"{tmp_path}/", "") == program.fix
    source = pasted(program.unwatched, found[0].fix, program.line)
    if source is not None:
        after = audited(tmp_path, source, values_of(rule))
        assert [f for f in after.findings if f.rule == rule.id and program.expects(f.message)] == [], source
        assert {f.rule for f in after.findings if f.severity in ALIKE} <= {f.rule for f in report.findings}, source
        assert not after.error or report.error


@pytest.mark.parametrize(("rule", "program"), [row for row in BAD if row.values[0].asks])
def test_a_rule_that_is_selected_alone_finds_the_same(rule, program, tmp_path):
    run(script(tmp_path / "program.py", program.unwatched), audit := dtypeguard.audit(select=rule.id))
    found = [finding for finding in audit.report.findings if finding.line == program.line]
    assert [finding.severity for finding in found] == [program.severity or rule.severity.value]


@pytest.mark.parametrize(("rule", "program"), GOOD)
def test_what_is_right_is_not_reported_by_an_audit(rule, program, tmp_path):
    """Nor is anything wrong with its values; what becomes infinite where nobody reads it may be an info."""
    report = audited(tmp_path, program.unwatched, values=True)
    assert [f for f in report.findings if f.severity in ALIKE or f.rule == rule.id] == [], report.findings


@pytest.mark.parametrize("mode", ["strict", "lenient", "off"])
@pytest.mark.parametrize(("rule", "program"), those(BAD, WATCHED))
def test_a_fault_is_found_by_a_watch(rule, program, mode, tmp_path):
    alone = left(run(script(tmp_path / "program.py", program.unwatched)))
    path = script(tmp_path / "program.py", program.source)
    bad = (program.severity or rule.severity.value) in ALIKE
    with dtypeguard.mode(mode), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AmpWarning)
        if mode == "strict" and bad:
            with pytest.raises(AmpError) as error:
                run(path)
            assert error.value.rule == rule.id
            return
        names = run(path)
    watched = names.pop("watched")
    findings = watched.report()
    assert same(alone, left(names))
    both = zip(program.source.splitlines(), program.unwatched.splitlines(), strict=True)
    begun = next(n for n, (line, other) in enumerate(both, 1) if line != other)  # what is known at once is there
    assert bool({program.watched_line, begun} & lines_of(findings, rule)) is (mode != "off"), findings
    assert any(rule.id in str(w.message) for w in caught) is (mode == "lenient" and bad)


@pytest.mark.parametrize(("rule", "program"), those(GOOD, WATCHED))
def test_what_is_right_is_not_reported_by_a_watch(rule, program, tmp_path):
    alone = left(run(script(tmp_path / "program.py", program.unwatched)))
    with dtypeguard.mode("strict"):
        names = run(script(tmp_path / "program.py", program.source))
    assert [f for f in names.pop("watched").report() if f.rule == rule.id] == []
    assert same(alone, left(names))


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "program"), BAD)
def test_a_fault_is_found_by_the_command(rule, program, tmp_path):
    script(tmp_path / "program.py", program.unwatched)
    values = ["--values"] if values_of(rule) else []
    warm.run("dtypeguard", "audit", *values, "--json", "report.json", "program.py", cwd=tmp_path)
    findings = json.loads((tmp_path / "report.json").read_text())["findings"]
    assert (rule.id, program.line) in [(finding["rule"], finding["line"]) for finding in findings]


def test_faults_are_found_by_the_marker(pytester):
    """All at once, one of each rule: each program is a test that fails for its rule."""
    tests = []
    for row in BAD:
        rule, program = row.values
        if program.path.stem == "bad_1" and (program.severity or rule.severity.value) in ALIKE:
            name = row.id.replace("-", "_")
            (pytester.path / f"{name}.py").write_text(program.unwatched)
            marker = f"@pytest.mark.dtype_audit(values={values_of(rule)})\n"
            tests.append(f"{marker}def test_{name}():\n    run({name!r})\n")
    head = """
import pytest, torch
@pytest.fixture(autouse=True)
def as_before():
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)
def run(name):
    path = f"{name}.py"
    exec(compile(open(path).read(), path, "exec"), {"__name__": "__main__"})
"""
    pytester.makepyfile(head + "\n".join(tests))
    result = pytester.runpytest_subprocess("-rN", "-p", "no:cacheprovider")
    parts = re.split(r"^_+ test_(\w+) _+$", result.stdout.str(), flags=re.MULTILINE)[1:]
    found = {name for name, part in zip(parts[::2], parts[1::2], strict=True) if f"[{name[:5]}]: " in part}
    assert found == {test.split("test_")[1].split("(")[0] for test in tests}


def test_a_bound_of_clamp_is_found_where_pytorch_wraps_it(tmp_path):
    """Before torch 2.15 it does; the audit compares with what int64 gives, and knows no version."""
    source = "import torch\n\nlevels = torch.tensor([10, 100, 200], dtype=torch.uint8).clamp(-1, 128)\n"
    wraps = torch.tensor([10], dtype=torch.uint8).clamp(-1, 128).item() != 10
    said = [finding.message for finding in audited(tmp_path, source).findings]
    assert [text.endswith(": -1 becomes 255 in uint8, and 2 of 3 results are wrong") for text in said] == [True] * wraps


NUMPY = "import numpy as np\nimport torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader\n"
SCALED = (
    "import torch\nfrom torch import nn\nm = nn.Linear(4, 1)\n"
    "opt, other = (torch.optim.SGD(m.parameters()) for _ in '12')\n"
    "my_scaler = torch.amp.GradScaler('cpu')\nmy_scaler.scale(m(torch.ones(2, 4)).mean()).backward()\n"
)
ROWS = NUMPY + "m = nn.Linear(4, 1)\n"
FIXES = {
    "the model's dtype": (
        NUMPY + "nn.Linear(4, 1).half()(torch.from_numpy(np.ones((3, 4))))\n",
        "convert where the float64 is born: `torch.from_numpy(np.ones((3, 4))).to(torch.float16)`",
    ),
    "a loss of a half model": (
        "import torch\nfrom torch import nn\ny = torch.rand(4, 1, dtype=torch.float64)\n"
        "(nn.Linear(4, 1).bfloat16()(torch.rand(4, 4).bfloat16()) - y).pow(2).mean().backward()\n",
        "convert where the float64 is born: `torch.rand(4, 1, dtype=torch.float64).to(torch.float32)`",
    ),
    "a cast that nobody needs": (
        "import torch\nprint(torch.ones(3).double() * torch.ones(3))\n",
        "convert where the float64 is born: `torch.ones(3).to(torch.float32)`, unless the digits of float64 are meant "
        "there",
    ),
    "a constant in the digits of float32": (
        "import torch\ntorch.tensor(1e-9).half()\n",
        "keep it as a number of Python, or in float32: `torch.tensor(1e-09)`",
    ),
    "what a loop yields": (
        ROWS + "for x, y in DataLoader([(np.ones(4), np.ones(1))]):\n    m(x)\n",
        "convert where the float64 is born: in the data set, or `.to(torch.float32)` on what is float64 of `x, y` at "
        "the top of the loop",
    ),
    "what a loop yields, alone": (
        ROWS + "for x in DataLoader([np.ones(4)]):\n    m(x)\n",
        "convert where the float64 is born: in the data set, or `x = x.to(torch.float32)` at the top of the loop",
    ),
    "what a loop yields, in a dict": (
        ROWS + "for x in DataLoader([{'x': np.ones(4)}]):\n    m(x['x'])\n",
        "convert where the float64 is born: in the data set, or `.to(torch.float32)` on what is float64 of `x` at the "
        "top of the loop",
    ),
    "the names of scaler and optimizer": (
        SCALED + "nn.utils.clip_grad_norm_(m.parameters(), 1.0)\nmy_scaler.step(opt)\n",
        "`my_scaler.unscale_(opt)` before the gradients are clipped",
    ),
    "the names in a step": (SCALED + "opt.step()\n", "`my_scaler.step(opt)` in place of `opt.step()`"),
    "a checkpoint in half": (
        NUMPY + "state = nn.Linear(4, 1).half().state_dict()\nnn.Linear(4, 1).load_state_dict(state)\n",
        "leave it to train in float32; to run in float16, `.to(torch.float16)` before loading",
    ),
}


@pytest.mark.parametrize(("source", "fix"), FIXES.values(), ids=FIXES)
def test_a_fix_speaks_of_the_program(source, fix, tmp_path):
    assert fix in [finding.fix for finding in audited(tmp_path, source).findings]


def test_advice_about_a_result_is_for_its_own_line_and_not_for_the_birth_of_a_dtype(tmp_path):
    source = NUMPY + (
        "table, net = torch.rand(8, 16), nn.Linear(16, 16)\n"
        "with torch.autocast('cpu', dtype=torch.bfloat16):\n"
        "    out = net(torch.rand(8, 16)) + table\n"
    )
    (finding,) = audited(tmp_path, source).findings
    assert finding.rule == "DG102"
    assert finding.fix.startswith("leave it, where float32 is meant")
    assert finding.edit.line == finding.line == 7


def test_a_total_in_a_copy_of_a_model_is_mended_where_the_copy_is_made(tmp_path):
    source = NUMPY + (
        "import copy\n"
        "model = nn.Linear(16, 16).requires_grad_(False).bfloat16()\n"
        "nn.init.ones_(model.weight)\n"
        "total = copy.deepcopy(model)\n"
        "first = total.weight.float()\n"
        "for _ in range(1000):\n"
        "    total.weight.add_(model.weight, alpha=0.001)\n"
        "print((total.weight.float() - first).mean().item())\n"
    )
    (finding,) = audited(tmp_path, source, values=True).findings
    assert (finding.rule, finding.line, finding.edit.line) == ("DG903", 11, 8)


AVERAGE = (
    "m = nn.Linear(4, 4, bias=False)\n"
    "nn.init.ones_(m.weight)\n"
    "m(torch.ones(1, 4))\n"
    "means = [p.detach().bfloat16() for p in m.parameters()]  # change\n"
    "for step in range(64):\n"
    "    with torch.no_grad():\n"
    "        for mean, p in zip(means, m.parameters()):\n"
    "            p += 0.01\n"
    "            {}\n"
    "print([mean.sum().item() for mean in means])\n"
)
TARGETS = {
    "an average": ("DG407", AVERAGE.format("mean.mul_(0.999).add_(p, alpha=0.001)")),
    "an average that is bound anew": (
        "DG407", AVERAGE.replace("mean, p in", "n, p in").format("means[n] = 0.999 * means[n] + 0.001 * p.bfloat16()")
        .replace("zip(means,", "zip([0],"),
    ),
    "a total in a list": (
        "DG903", "means = [torch.ones(4, dtype=torch.bfloat16)]  # change\n"
        "for step in range(64):\n    torch._foreach_add_(means, 0.001)\nprint(means[0].sum().item())\n",
    ),
    "a count": ("DG109", "count = torch.zeros((), dtype=torch.int8)  # change\nfor _ in range(200):\n    count += 1\n"),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "source"), TARGETS.values(), ids=TARGETS)
def test_the_line_to_change_of_what_is_written_to_is_the_one_that_made_it(rule, source, tmp_path):
    (finding,) = audited(tmp_path, NUMPY + source, values=True).findings
    assert (finding.rule, finding.edit.source[-8:]) == (rule, "# change")


def test_what_is_refused_is_mended_where_another_finding_has_its_dtype_changed(tmp_path):
    source = NUMPY + (
        "nets = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).bfloat16()\n"
        "x = torch.rand(2, 4).bfloat16()\n"
        "for net in nets:\n"
        "    mask = torch.ones(4)\n"
        "    x = net(x) * mask\n"
    )
    findings = audited(tmp_path, source).findings
    assert {finding.rule for finding in findings} == {"DG102", "DG110"}
    assert {finding.edit.line for finding in findings} == {8}
    assert len({finding.fix for finding in findings}) == 1


def test_a_half_loss_is_mended_where_it_becomes_half_and_told_once(tmp_path):
    source = NUMPY + (
        "m, scaler = nn.Linear(4, 1), torch.amp.GradScaler('cpu')\n"
        "with torch.autocast('cpu', dtype=torch.float16):\n"
        "    loss = m(torch.ones(2, 4)).mean()\n"
        "scaler.scale(loss).backward()\n"
    )
    (finding,) = audited(tmp_path, source).findings
    assert (finding.rule, finding.line, finding.edit.line) == ("DG306", 8, 7)
    again = source.replace("m(torch.ones(2, 4))", "m(torch.ones(2, 4)).float()")
    assert not audited(tmp_path, again).findings
    (cast,) = audited(tmp_path, source.replace(".mean()", ".float().mean().half()")).findings
    assert cast.fix.startswith("compute the loss in float32: leave out the cast of `m(")
