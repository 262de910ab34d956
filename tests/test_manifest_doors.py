"""Where manifests are checked: `guard(state=)`, audits, the command line, pytest."""

import contextlib
import copy
import gc
import pathlib
import pickle
import threading
import warnings

import pytest
import torch
import warm
from support import reason
from torch import nn

import dtypeguard
from dtypeguard import ContractWarning, StateError, manifest
from dtypeguard._core.base.patches import here

pytest_plugins = "pytester"
X = torch.ones(2, 3)


def net():
    return nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))


def held(**options):
    return dtypeguard.guard(net(), state=manifest(net()), mode="strict", **options)


# ---------------------------------------------------------------- guard(state=)


def convert(model):
    model.to(torch.float16)


def convert_inside(model):
    model[1].half()


def convert_by_apply(model):
    model.apply(lambda module: module.half() if isinstance(module, nn.LayerNorm) else None)


def load_into(model):
    model[1].load_state_dict({"weight": torch.ones(3).double(), "bias": torch.ones(3).double()}, assign=True)


@pytest.mark.parametrize("change", [convert, convert_inside, convert_by_apply, load_into])
def test_a_guarded_model_is_checked_at_the_first_call_after_a_change(change):
    model = held()
    model(X)
    change(model)
    for _ in range(2):  # until it is mended
        with pytest.raises(
            StateError, match=rf"\n  changed at .*test_manifest_doors.py:\d+, in ({change.__name__}|<lambda>)\n"
        ):
            model(X)
    model.float()
    model(X)
    assert not model._forward_pre_hooks  # so that calls cost what they cost without it


def test_a_guarded_model_is_checked_at_its_first_call(tmp_path):
    manifest(net()).save(tmp_path / "dtypes.lock")
    model = dtypeguard.guard(net().half(), state=tmp_path / "dtypes.lock", mode="strict")
    with pytest.raises(StateError, match=r"dtypes.lock in 4 of 4 tensors\n  \*  float32 -> float16"):
        model(X.half())


def test_what_is_between_two_calls_does_not_count():
    model = held()
    model.half()
    model.float()
    model(X)
    other = net().half()
    model(X)
    other.double()
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("mode", ["lenient", "warn"])
def test_lenient_mode_warns_once_a_change_and_converts_nothing(mode):
    model = dtypeguard.guard(net(), state=manifest(net()), mode=mode)
    convert_inside(model)
    for count in (1, 0):
        with warnings.catch_warnings(record=True) as caught, contextlib.suppress(RuntimeError):
            warnings.simplefilter("always")
            model(X)  # PyTorch refuses a float32 input of a half norm
        told = [w for w in caught if "differs from the manifest in 2 of 4 tensors" in str(w.message)]
        assert [(w.category, w.filename) for w in told] == [(ContractWarning, __file__)] * count
    assert model[1].weight.dtype is torch.float16


def test_off_checks_nothing():
    model = held().half()
    with dtypeguard.mode("off"):
        dtypeguard.guard(model, state=manifest(net()))(X.half())


@pytest.mark.parametrize("form", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("called", [True, False])
def test_a_copy_is_held_to_the_same(form, called):
    model = held()
    if called:
        model(X)
    other = form(model)
    other(X)
    convert_inside(other)
    with pytest.raises(StateError):
        other(X)
    model(X)


@pytest.mark.parametrize("inside", [True, False], ids=["in a function", "itself"])
def test_a_compiled_model_is_checked_when_it_is_compiled_anew(inside):
    model = held()

    def call(x):
        return model(x) + 1

    compiled = torch.compile(call if inside else model, backend="eager", fullgraph=True)
    compiled(X)
    compiled(X)
    model.half()
    with pytest.raises(Exception, match="Sequential differs from the manifest in 4 of 4 tensors"):
        compiled(X.half())
    model.float()
    compiled(X)


def test_nothing_stays_when_nobody_is_guarded():
    gc.collect()  # models of other tests
    before = [*here.listeners]
    apply = nn.Module._apply
    model = held()
    assert nn.Module._apply is not apply
    dtypeguard.unguard(model)
    assert not model._forward_pre_hooks
    assert (nn.Module._apply, here.listeners) == (apply, before)
    model = held()
    del model
    gc.collect()
    assert (nn.Module._apply, here.listeners) == (apply, before)
    with dtypeguard.guarded(net(), state=manifest(net())) as model:
        model(X)
    assert (nn.Module._apply, here.listeners) == (apply, before)
    model.half()(X.half())


def test_the_guard_that_a_block_ends_is_held_again():
    model = held()
    with dtypeguard.guarded(model, mode="lenient"):
        model.half()(X.half())
    with pytest.raises(StateError):
        model(X.half())


def test_another_thread_converts_at_its_own_price():
    model, other = held(), net()
    model(X)
    thread = threading.Thread(target=other.half)
    thread.start()
    thread.join()
    assert not model._forward_pre_hooks
    assert other[0].weight.dtype is torch.float16


@pytest.mark.parametrize(("state", "kind"), [(3, TypeError), ("nothing.lock", FileNotFoundError), (net(), TypeError)])
def test_a_wrong_state_guards_nothing(state, kind):
    model = net()
    with pytest.raises(kind, match=r"state=|nothing\.lock"):
        dtypeguard.guard(model, state=state)
    assert not dtypeguard.is_guarded(model)


# ---------------------------------------------------------------- audits


class Frequencies(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("freqs", torch.ones(3), persistent=False)
        self.register_buffer("scale", torch.ones(3))
        self.table = torch.ones(3)

    def forward(self, x):
        return self.layer(x) * self.freqs


def to_dtype(model):
    model.to(torch.bfloat16)


def part(model):
    model.layer.half()


def apply_private(model):
    model._apply(torch.Tensor.half)


def assign(model):
    model.load_state_dict(
        {
            "layer.weight": torch.ones(3, 3).double(),
            "layer.bias": torch.ones(3).double(),
            "scale": torch.ones(3).double(),
        },
        assign=True,
    )


OLDER = Frequencies().double().state_dict()


def assign_what_is_older(model):
    model.load_state_dict(OLDER, assign=True)


def parameter(model):
    model.layer.weight = nn.Parameter(model.layer.weight.detach().half())


def buffer(model):
    model.freqs = model.freqs.half()


def attribute(model):
    model.table = model.table.half()


@pytest.mark.parametrize(
    "change", [to_dtype, part, apply_private, assign, assign_what_is_older, parameter, buffer, attribute]
)
def test_an_audit_names_the_line_of_a_change(change):
    model = Frequencies()
    lock = manifest(model)
    with dtypeguard.audit() as report:
        model(X)
        change(model)
        with pytest.raises(StateError) as caught:
            lock.check(model)
    assert not report.faults, report.faults
    assert all(f"test_manifest_doors.py:{change.__code__.co_firstlineno + 1}, in {change.__name__}" in line
               for line in str(caught.value).splitlines() if " -> " in line), str(caught.value)  # fmt: skip


def test_an_audit_hears_conversions_beside_a_guard_that_looks_after_state():
    guarded = dtypeguard.guard(Frequencies(), state=manifest(Frequencies()))
    with dtypeguard.audit() as report:
        guarded(X)
        apply_private(Frequencies())
    assert report.faults == []


# ---------------------------------------------------------------- the command line

MODELS = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))

def half():
    return net().half()

def batch():
    return torch.ones(2, 3)
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        ended = warm.run("dtypeguard", "manifest", *arguments, strict=True)
        return ended.returncode, ended.stdout, ended.stderr

    return run


def test_the_command_writes_and_checks(command, tmp_path):
    assert command("models:net", "-o", "dtypes.lock", "--batch", "models:batch") == (0, "", "")
    text = (tmp_path / "dtypes.lock").read_text()
    assert "[tensors]\n*  float32\n" in text
    assert "[computes]\n*  float32\n" in text
    torch.save(net().state_dict(), tmp_path / "weights.pt")
    torch.save(net().half().state_dict(), tmp_path / "half.pt")
    good = "models:net is as dtypes.lock says (4 tensors)\nweights.pt is as dtypes.lock says (4 tensors)\n"
    assert command("--check", "dtypes.lock", "models:net", "weights.pt") == (0, good, "")
    status, out, err = command("--check", "dtypes.lock", "models:half", "half.pt", "weights.pt")
    assert (status, err) == (1, "")
    assert out.splitlines() == [
        "models:half differs from dtypes.lock in 4 of 4 tensors",
        "  *  float32 -> float16 (4 tensors)",
        "half.pt differs from dtypes.lock in 4 of 4 tensors",
        "  *  float32 -> float16 (4 tensors)",
        "weights.pt is as dtypes.lock says (4 tensors)",
        "exit status 1: models:half, half.pt differ from dtypes.lock",
    ]
    status, _, _ = command("--check", "dtypes.lock", "half.pt", "--html", "page.html", "--json", "data.json")
    assert status == 1
    assert "float16" in (tmp_path / "page.html").read_text()
    assert '"expected": "float32"' in (tmp_path / "data.json").read_text()


MISSING = {
    "guard: cannot read state='gone.st'": lambda: dtypeguard.guard(nn.Linear(2, 2), state="gone.st"),
    "manifest: cannot read model='gone.st'": lambda: dtypeguard.manifest(pathlib.Path("gone.st")),
    "manifest.load: cannot read path='gone.st'": lambda: dtypeguard.manifest.load("gone.st"),
    "manifest.check: cannot read model='gone.st'": lambda: dtypeguard.manifest(nn.Linear(2, 2)).check("gone.st"),
    "manifest.diff: cannot read other='gone.st'": lambda: dtypeguard.manifest(nn.Linear(2, 2)).diff("gone.st"),
    "diff: cannot read a='gone.st'": lambda: dtypeguard.diff("gone.st", nn.Linear(2, 2), torch.ones(1, 2)),
}


@pytest.mark.parametrize("said", MISSING)
def test_a_file_that_is_not_there_is_told_in_one_way(said):
    with pytest.raises(FileNotFoundError) as told:
        MISSING[said]()
    assert str(told.value) == f"{said}: no such file or directory"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["models:net", "-o", "no/where.lock"], "cannot write no/where.lock: there is no folder"),
        (["models:net", "models:half"], "name one, or check several with --check"),
        (["--check", "nothing.lock", "models:net"], "cannot read nothing.lock: no such file or directory"),
        (["--check", "models.py", "models:net"], "models.py is no manifest"),
        (["--check", "models.py", "-o", "models.py", "models:net"], "cannot write models.py: --check reads it"),
        (["--check", "models.py", "--shapes", "models:net"], "--check writes none"),
        (["models:nothing"], "models has no 'nothing'"),
        (["models:batch"], "models:batch returned a Tensor: return an nn.Module or a state_dict, or (model, batch)"),
        (["nothing.pt"], "there is no file nothing.pt; what makes a model is named package.module:function"),
        (["models.py"], "models.py is no checkpoint"),
    ],
)
def test_the_command_says_in_a_sentence_what_is_wrong(command, arguments, said):
    status, out, err = command(*arguments)
    assert (status, out) == (2, "")
    assert said in reason(err)


# ---------------------------------------------------------------- results


def test_a_difference_and_a_manifest_are_results():
    lock = manifest(net())
    found = lock.diff(net().half())
    assert found.to_dict()["rows"][0]["expected"] == "float32"
    assert lock.to_dict()["names"] == ["*.bias", "*.weight"]
    for result in (lock, found, lock.diff(nn.Conv1d(1, 1, 1))):
        assert "<table" in result._repr_html_() or result is not lock
        assert result.to_html().startswith("<!doctype html>")
        assert result.to_json()


# ---------------------------------------------------------------- pytest

TEST = """
import pytest, torch

dtype = torch.float32

@pytest.mark.parametrize("width", [2, 3])
def test_state(dtype_manifest, width):
    dtype_manifest(torch.nn.Linear(width, 1, dtype=dtype))
    dtype_manifest(torch.nn.Linear(width, 1), name="other")
"""


def test_a_test_compares_with_a_committed_file(pytester):
    def run(*options, **expected):
        result = pytester.runpytest("-p", "no:cacheprovider", "-p", "no:hypothesispytest", *options)
        result.assert_outcomes(**expected)
        return result

    path = pytester.makepyfile(test_net=TEST)
    run(failed=2).stdout.fnmatch_lines(
        ["*there is no */dtypes/test_net.test_state-2.lock: pytest --dtypeguard-update * writes it"]
    )
    run("--dtypeguard-update", passed=2)
    written = {file.name: file.read_text() for file in (path.parent / "dtypes").iterdir()}
    assert sorted(written) == ["other.lock", "test_net.test_state-2.lock", "test_net.test_state-3.lock"]
    run(passed=2)
    path.write_text(TEST.replace("torch.float32", "torch.bfloat16"))
    run(failed=2).stdout.fnmatch_lines(
        ["Linear differs from */test_net.test_state-2.lock in 2 of 2 tensors", "*float32 -> bfloat16 (2 tensors)",
         "  update     pytest --dtypeguard-update 'test_net.py::test_state[[]2[]]' writes it anew"]
    )  # fmt: skip
    assert {file.name: file.read_text() for file in (path.parent / "dtypes").iterdir()} == written
    run("--dtypeguard-update", passed=2)
    run(passed=2)
    path.write_text("def test_number(dtype_manifest):\n    dtype_manifest(5)")
    for option in ((), ("--dtypeguard-update",)):
        run(*option, failed=1).stdout.fnmatch_lines(["*TypeError: manifest takes a model or a mapping *, not an int*"])
    path.write_text(TEST.replace(', name="other"', ""))
    run("--dtypeguard-update", failed=2).stdout.fnmatch_lines(["*this test has a manifest of that name already*"])
