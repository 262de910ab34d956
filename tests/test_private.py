"""Contracts hold although torch or jaxtyping lacks a private name that dtypeguard knows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import dtypeguard
from dtypeguard._core.base import private

SOURCE = Path(dtypeguard.__file__).parent
NAMES = re.findall(r'_find\("([\w.]+)"', (SOURCE / "_core/base/private.py").read_text())
# In a process of its own: `argv` names what the version of torch or jaxtyping does not have.
PROGRAM = """
import operator, sys, warnings
import torch, jaxtyping
from torch import nn
from jaxtyping import Float

missing, getter = sys.argv[1:], operator.attrgetter
tails = {name.partition(".")[2] for name in missing}

def attrgetter(path):
    def get(thing):
        if path in tails:
            raise AttributeError(path)
        return getter(path)(thing)
    return get

operator.attrgetter = attrgetter
import dtypeguard
from dtypeguard._core.base import private
operator.attrgetter = getter
assert set(private.MISSING) == set(missing), private.MISSING
x, wrong = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.float64)

@dtypeguard.enforce(mode="strict")
def f(a: Float[torch.Tensor, "n m"], b: Float[torch.Tensor, "m"]) -> Float[torch.Tensor, "n"]:
    assert isinstance(a, Float[torch.Tensor, "n m"])
    return a @ b

assert f(x, torch.ones(3)).shape == (2,)
for bad in ((x, torch.ones(4)), (x.int(), torch.ones(3))):
    try:
        f(*bad)
    except (dtypeguard.ShapeError, dtypeguard.DtypeError):
        pass
    else:
        raise SystemExit("a violation passed")

warnings.simplefilter("ignore", dtypeguard.CastWarning)
model = dtypeguard.guard(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)))
for _ in range(3):
    model(wrong.requires_grad_()).sum().backward()
assert model(wrong).dtype is torch.float32 and sum(cast.count for cast in dtypeguard.casts()) == 4
with torch.autocast("cpu", torch.bfloat16):
    model(x.bfloat16())
with dtypeguard.mode("strict"):
    try:
        model(wrong)
    except dtypeguard.DtypeError as error:
        assert "float64" in str(error)
    else:
        raise SystemExit("a violation passed")
torch.func.vmap(f, in_dims=(0, None))(torch.ones(5, 2, 3), torch.ones(3))
with dtypeguard.audit() as report:
    torch.ones(3).to(torch.bfloat16)
assert [cast.kind for cast in report.casts] == ["explicit"], report
assert report.faults == []
"""


def without(*names):
    run = subprocess.run([sys.executable, "-c", PROGRAM, *names], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_this_version_has_them_all_and_each_is_named_once():
    assert private.MISSING == []
    assert len(NAMES) == len(set(NAMES)) > 20
    code = re.compile(r"torch\\._C\\.\\w+|jaxtyping\\._\\w+")
    others = {p.name: found for p in SOURCE.rglob("*.py") if p.name != "private.py"
              for found in [code.findall(re.sub(r'"[^"\n]*"|#.*', "", p.read_text()))] if found}  # fmt: skip
    assert others == {}


def test_contracts_hold_without_any_of_them():
    without(*NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_contracts_hold_without_one_of_them(name):
    without(name)
