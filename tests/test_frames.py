"""Whose line it is: the user's own, past what is installed; and filters of warnings that name a module."""

import dataclasses
import json
import warnings

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor, nn

import dtypeguard
from dtypeguard import DtypeGuardWarning, amp, audit, enforce, guard

FRAMEWORK = """
def run(function, *args):
    return function(*args)

def discard(x):
    x.half()
"""


def module_at(path, name):
    """What a module of this name in this file defines."""
    scope = {"__name__": name}
    exec(compile(FRAMEWORK, str(path), "exec"), scope)
    return scope


def adam(model):
    """Its eps is 0 in half."""
    return model, torch.optim.Adam(model.parameters())


@pytest.fixture(params=["lib/python3.13/site-packages", "lib/python3/dist-packages"], ids=["pip", "Debian"])
def framework(request, tmp_path):
    return module_at(tmp_path / request.param / "framework" / "loop.py", "framework.loop")


def test_a_finding_of_an_audit_stands_at_the_users_line(framework):
    with audit() as report:
        framework["run"](nn.Linear(2, 2).half().load_state_dict, nn.Linear(2, 2).state_dict())
    (finding,) = report.findings
    assert finding.rule == "DG601"
    assert finding.site.startswith("tests/test_frames.py:")


@enforce
@dataclasses.dataclass
class Batch:
    x: Float32[Tensor, "n"]


def test_what_pythons_own_library_constructs_stands_at_the_users_line():
    with dtypeguard.mode("lenient"), pytest.warns(dtypeguard.CastWarning) as said:
        dataclasses.replace(Batch(torch.ones(2)), x=torch.ones(2).double())
    assert said[0].filename == __file__
    assert dtypeguard.casts()[-1].site.startswith("tests/test_frames.py:")
    with dtypeguard.mode("strict"), pytest.raises(dtypeguard.DtypeError, match=r"called at +tests/test_frames.py:"):
        dataclasses.replace(Batch(torch.ones(2)), x=torch.ones(2).double())


def test_a_finding_of_a_watch_stands_at_the_users_line(framework):
    model, optimizer = adam(nn.Linear(2, 2))
    handle = amp.watch(model, optimizer)
    model.half()(torch.ones(1, 2).half()).sum().backward()
    with pytest.warns(dtypeguard.AmpWarning) as said, handle:
        framework["run"](optimizer.step)
    assert {warning.filename for warning in said} == {__file__}
    assert all(finding.site.startswith("tests/test_frames.py:") for finding in handle.report())


def test_a_baseline_knows_what_is_installed_on_every_machine(framework, tmp_path):
    audit(framework["discard"], torch.ones(2)).save_baseline(tmp_path / "known.json")
    (row,) = json.loads((tmp_path / "known.json").read_text())["findings"]
    assert row["file"] == "site-packages/framework/loop.py"


# ---------------------------------------------------------------- filters of warnings


@enforce
def total(x: Float32[Tensor, "n"]):
    return x.sum()


@enforce(mode="warn")
def told(x: Float32[Tensor, "n"]):
    return x.sum()


@enforce
def double(x: Float32[Tensor, "n"]):
    x.mul_(2)


WAYS = {
    "a repair": lambda: (total, torch.ones(2).double()),
    "mode warn": lambda: (told, torch.ones(2).double()),
    "writing to a copy": lambda: (double, torch.ones(2).double()),
    "a watch": lambda: (amp.watch, *adam(nn.Linear(2, 2).half())),
    "a scripted guard": lambda: (torch.jit.script, guard(nn.Linear(2, 2))),
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("way", WAYS)
def test_a_filter_that_names_the_module_silences_it(tmp_path, way):
    dtypeguard.reset_casts()
    run = module_at(tmp_path / "anywhere.py", "theirs.train")["run"]
    call = WAYS[way]()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=DtypeGuardWarning)
        warnings.filterwarnings("ignore", module=r"theirs\.")
        run(*call)
        warnings.filterwarnings("error", category=DtypeGuardWarning, module=r"theirs\.train$")
        dtypeguard.reset_casts()
        with pytest.raises(DtypeGuardWarning):
            run(*WAYS[way]())  # anew: a watch that is begun again says nothing twice


def test_a_repair_that_was_forgotten_is_said_again_at_the_same_line():
    """Python's own registry of what was said has no part in it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for _ in range(2):
            dtypeguard.reset_casts()
            total(torch.ones(2).double())
    assert len(said) == 2


def test_a_warning_of_a_body_arrives_where_its_stacklevel_says():
    @enforce
    def old(x: Float32[Tensor, "n"], level: int = 2):
        warnings.warn("use another", DeprecationWarning, stacklevel=level)

    class Old(nn.Linear):
        def forward(self, x):
            warnings.warn("use another", DeprecationWarning, stacklevel=2)
            return super().forward(x)

    def outer(x):
        old(x, 3)

    model = guard(Old(2, 2))
    for call in (lambda: old(torch.ones(2)), lambda: outer(torch.ones(2)), lambda: model.forward(torch.ones(1, 2))):
        with pytest.warns(DeprecationWarning, match="use another") as caught:
            call()
        assert (caught[0].filename, caught[0].lineno) == (__file__, call.__code__.co_firstlineno)
