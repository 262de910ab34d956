"""A traceback has no frame of dtypeguard, whoever prints it; one of dtypeguard's own faults keeps them."""

import asyncio
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor, nn

import dtypeguard
from dtypeguard import enforce, guard

pytest_plugins = ["pytester"]
OURS = str(Path(dtypeguard.__file__).parent)
PROGRAM = """\
import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

import dtypeguard

dtypeguard.set_mode("strict")


@dtypeguard.enforce
def total(x: Float32[Tensor, "n"]):
    return x.sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    @dtypeguard.enforce
    def forward(self, x: Float[Tensor, "n 2"]):
        return self.fc(x)


class Guarded(dtypeguard.GuardedModule):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Float[Tensor, "n 2"]):
        return self.fc(x)


wrong = torch.ones(2, 2, dtype=torch.float64)
"""
CALLS = {
    "a function": "total(wrong[0])",
    "a forward": "Net()(wrong)",
    "a guard": "dtypeguard.guard(nn.Linear(2, 2))(wrong)",
    "a check": "dtypeguard.check(wrong, Float32[Tensor, 'n m'])",
    "a GuardedModule": "Guarded()(wrong)",
    "a manifest": "dtypeguard.manifest(nn.Linear(2, 2)).check(nn.Linear(2, 2).half())",
    "a set of modules": "dtypeguard.results.Kept(('0',), 0.1, 1, torch.bfloat16).apply(nn.Linear(2, 2))",
    "an annotation": "dtypeguard.enforce(mode='strict')(lambda x: x) and dtypeguard.check(wrong, 'Nowhere')",
}


def test_python_prints_none_of_our_frames(tmp_path):
    """In one process, since starting each takes seconds: what `python` prints of an exception is what this prints."""
    lines = [PROGRAM, "import sys, traceback"]
    for call in CALLS.values():
        lines += ["try:", f"    {call}", "except Exception:", "    sys.excepthook(*sys.exc_info())"]
    (tmp_path / "train.py").write_text("\n".join(lines))
    told = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, cwd=tmp_path, check=True).stderr
    assert told.count("Traceback") >= len(CALLS)
    assert OURS not in told
    assert "<dtypeguard" not in told
    assert all(f"    {call}\n" in told for call in CALLS.values())


def test_pytest_prints_none_of_our_frames(pytester):
    tests = [f"def test_{n}():\n    {call}\n" for n, call in enumerate(CALLS.values())]
    pytester.makepyfile(PROGRAM + "\n\n" + "\n\n".join(tests))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--tb=long", "--full-trace")
    result.assert_outcomes(failed=len(CALLS))
    result.stdout.no_fnmatch_line("*settle.py:*")
    result.stdout.no_fnmatch_line("*enforce.py:*")
    result.stdout.no_fnmatch_line("*<dtypeguard*")


def files(call, *kinds):
    """The files of the frames between here and where an exception rose."""
    with pytest.raises(kinds or Exception) as caught:
        call()
    return [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)][1:]


@enforce
def loss(pred: Float32[Tensor, "n"], target: Float32[Tensor, "n"]):
    if target.sum() > 9:
        raise KeyError("of the body")
    return pred - target


@enforce
def stream(x: Float32[Tensor, "n"]):
    yield x


@enforce
async def later(x: Float32[Tensor, "n"]):
    return x


@enforce
async def items(x: Float32[Tensor, "n"]):
    yield x


async def every(stream):
    return [item async for item in stream]


def steps_without_a_scaled_loss():
    model, scaler = nn.Linear(2, 2), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters())
    with dtypeguard.amp.watch(model, optimizer, scaler, ignore="DG307"):
        scaler.step(optimizer)


wrong = torch.ones(2, dtype=torch.float64)
right = torch.ones(2)
WAYS = {
    "an argument": lambda: loss(right, wrong),
    "a generator": lambda: list(stream(wrong)),
    "a coroutine": lambda: asyncio.run(later(wrong)),
    "an async generator": lambda: asyncio.run(every(items(wrong))),
    "a graph": lambda: guard(torch.fx.symbolic_trace(nn.ReLU()), dtype=torch.float32)(wrong),
    "the body, after checks that passed": lambda: loss(right, right * 9),
    "a malformed annotation": lambda: dtypeguard.check(right, "Float32[Tensor, 'a,b']"),
    "the annotation of an argument": lambda: enforce(annotated),
    "an error of PyTorch's scaler": steps_without_a_scaled_loss,
}


def annotated(x: "Float32[Tensor, 'a,b']"):
    return x


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::dtypeguard.DtypeGuardWarning")
def test_no_frame_is_ours(way):
    with dtypeguard.mode("strict"):
        assert [file for file in files(WAYS[way]) if file.startswith((OURS, "<dtypeguard"))] == []


def test_an_exception_of_the_body_after_a_repair_has_the_frames_of_the_body():
    with dtypeguard.mode("lenient"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):  # by the reference, then by a plan
            assert files(lambda: loss(right, wrong * 9), KeyError) == [__file__, __file__]


def test_a_warning_that_is_an_error_has_no_frame_of_ours():
    dtypeguard.reset_casts()
    with dtypeguard.mode("lenient"):
        assert files(lambda: loss(right, wrong), dtypeguard.CastWarning) == [__file__]


def test_a_fault_of_our_own_keeps_its_frames():
    class Broken(Tensor):
        @property
        def shape(self):
            raise AssertionError

        @property
        def dtype(self):
            raise ZeroDivisionError

    with dtypeguard.mode("strict"):
        assert files(lambda: loss(right, torch.ones(2).as_subclass(Broken)), ZeroDivisionError)[-1] == __file__
    with dtypeguard.mode("strict"):
        assert any(
            file.startswith(OURS) for file in files(lambda: dtypeguard.check(right, Float32[Tensor, "n"], mode="loud"))
        )
