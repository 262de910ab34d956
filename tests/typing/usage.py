"""Read by mypy and pyright only: decorated functions and guarded models keep their types."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, assert_type

import torch
from hypothesis import strategies as st
from jaxtyping import Float
from torch import Tensor, nn

import dtypeguard
from dtypeguard import testing
from dtypeguard.integrations.lightning import DtypeGuardCallback as LightningCallback
from dtypeguard.integrations.transformers import DtypeGuardCallback as TrainerCallback


@dtypeguard.enforce
def bare(x: Float[Tensor, "b"], n: int = 1) -> Float[Tensor, "b"]:
    return x * n


@dtypeguard.enforce(mode="strict", casting="safe", mutates=("out",))
def with_options(x: Tensor, *, out: Tensor) -> int:
    return 1


@dtypeguard.enforce
async def awaited(x: Tensor) -> Tensor:
    return x


@dtypeguard.enforce
def items(x: Tensor) -> Iterator[Tensor]:
    yield x


@dtypeguard.enforce
async def stream(x: Tensor) -> AsyncIterator[Tensor]:
    yield x


@dtypeguard.enforce
class Net(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


@dtypeguard.enforce
@dataclass
class Batch:
    x: Tensor
    size: int = 1


class Guarded(dtypeguard.GuardedModule):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Methods:
    @dtypeguard.enforce
    def method(self, x: Tensor) -> str:
        return ""

    @dtypeguard.enforce
    @staticmethod
    def static(x: Tensor) -> int:
        return 0

    @classmethod
    @dtypeguard.enforce
    def cls_method(cls, x: Tensor) -> float:
        return 0.0


def step(x: Tensor, *, rules: int = 1, watch: bool = False) -> Tensor:
    return x * rules if watch else x


t = torch.ones(1)
assert_type(bare(t, n=2), Tensor)
assert_type(with_options(t, out=t), int)
assert_type(dtypeguard.enforce(len, mode="strict")("ab"), int)
assert_type(Net(), Net)
assert_type(dtypeguard.enforce(Net), type[Net])
assert_type(Batch(t).size, int)
assert_type(Methods().method(t), str)
assert_type(Methods.static(t), int)
assert_type(Methods.cls_method(t), float)
assert_type(dtypeguard.guard(Net()), Net)
assert_type(dtypeguard.guard(nn.Linear(1, 1), mode="lenient", skip_modules=("a.*", nn.LayerNorm)), nn.Linear)
assert_type(dtypeguard.unguard(Net()), Net)
assert_type(dtypeguard.is_guarded(Net()), bool)
assert_type(dtypeguard.casts()[0].count, int)
assert_type(dtypeguard.check(t, Tensor), Tensor)
dtypeguard.set_mode("strict", casting="promote", under=".")
assert_type(testing.inputs_for(bare), st.SearchStrategy[inspect.BoundArguments])
assert_type(testing.violations_of(Tensor), st.SearchStrategy[testing.Breach])
assert_type(testing.check_module(Net, batch=t), testing.ModuleReport)
assert_type(testing.check_module(Net, batch=t).traps[0], testing.Cell)
assert_type(dtypeguard.audit(step, t, rules=3, watch=True), dtypeguard.results.AuditReport[Tensor])
assert_type(dtypeguard.audit(len, "ab").result, int)
assert_type(dtypeguard.audit(nn.Linear(1, 1), t), dtypeguard.results.AuditReport[Any])
assert_type(dtypeguard.audit(nn.Linear(1, 1), (t,)), dtypeguard.results.AuditReport[Any])
kept: dtypeguard.results.AuditReport = dtypeguard.audit(len, "ab")  # any result
with dtypeguard.audit(nn.Linear(1, 1), select="DG1", ignore=["DG103"]) as report:
    assert_type(report, dtypeguard.results.AuditReport[None])
assert_type(dtypeguard.dryrun(nn.Linear(1, 1), {"input": t}, dtype=[t.dtype]), dtypeguard.results.DryrunTable)
assert_type(dtypeguard.dryrun(nn.Linear(1, 1), t)["bfloat16", t.dtype, None], dtypeguard.results.DryrunCell)
assert_type(dtypeguard.dryrun(nn.Linear(1, 1), t).cells[0].status, Literal["runs", "repaired", "refused", "unknown"])
assert_type(kept.findings[0].severity, Literal["info", "warning", "error"])
assert_type(
    testing.check_module(Net, batch=t, dtype=["bf16", torch.float32], region=["bfloat16", None]).cells[0].status,
    Literal["FAILED", "trap", "cast", "refused", "same", "unsupported"],
)
assert_type(
    dtypeguard.diff(nn.Linear(1, 1), nn.Linear(1, 1), t).verdict,
    Literal["same", "rounding", "a rounds worse", "b rounds worse", "another function"],
)
assert_type(dtypeguard.compare(nn.Linear(1, 1), t, dtype="bf16"), dtypeguard.results.Comparison)
assert_type(dtypeguard.compare(nn.Linear(1, 1), t, region="bf16"), dtypeguard.results.Comparison)
assert_type(dtypeguard.guard(nn.Linear(1, 1), dtype="half", output_dtype="float32"), nn.Linear)
testing.tensors(Tensor, dtype=("int64", torch.bool))
assert_type(dtypeguard.describe(nn.Linear(1, 1), depth="all", skip_modules=[nn.ReLU]), dtypeguard.results.Description)
assert_type(dtypeguard.describe(nn.Linear(1, 1)).modules, list[dtypeguard.results.HeldModule])
assert_type(dtypeguard.casts()[0], dtypeguard.results.CastRecord)
made: Callable[[Tensor], Tensor] = dtypeguard.mode("off")(Net().forward)
with dtypeguard.mode("strict"):
    pass
with dtypeguard.mode("lenient", casting="promote"), dtypeguard.mode(casting="safe"):
    pass
with dtypeguard.guarded(Net(), mode="strict", skip_args="x", skip_modules=[nn.LayerNorm, "a"]) as net:
    assert_type(net, Net)
with dtypeguard.install_import_hook("mypackage", mode="strict", casting="safe") as hook:
    assert_type(hook, dtypeguard.results.ImportHook)
LightningCallback(mode="strict", depth="all", watch={"every": 10, "ignore": "DG309"})
TrainerCallback(casting="promote", skip_args=("x",), watch=False)

# What a type checker must refuse; each ignore is an error by itself if there is nothing to ignore.
bare("x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
bare(t, m=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
with_options(t)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
dtypeguard.mode("loud")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
dtypeguard.guard(1)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
dtypeguard.guarded(nn.Linear(1, 1), moode="strict")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
dtypeguard.install_import_hook("a", "b")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
LightningCallback(depth="deep")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
TrainerCallback(modus="strict")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
TrainerCallback(watch={"evry": 1})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
dtypeguard.enforce(casting="wild")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
assert_type(dtypeguard.manifest(nn.Linear(1, 1), batch=t, shapes=True), dtypeguard.results.Manifest)
assert_type(dtypeguard.manifest.load("dtypes.lock").diff(nn.Linear(1, 1)), dtypeguard.results.StateDiff)
assert_type(dtypeguard.guard(nn.Linear(1, 1), state="dtypes.lock"), nn.Linear)
assert_type(dtypeguard.guard(nn.Linear(1, 1), state=dtypeguard.manifest(nn.Linear(1, 1))), nn.Linear)
dtypeguard.guard(nn.Linear(1, 1), state=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
dtypeguard.describe(step)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
dtypeguard.describe(nn.Linear(1, 1), depth="deep")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
dtypeguard.dryrun(step, t)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
dtypeguard.audit(step, t, rules="DG1")  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
dtypeguard.guard(nn.Linear(1, 1), dtype="bflot16")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
dtypeguard.guard(nn.Linear(1, 1), dtype="int64")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
dtypeguard.dryrun(nn.Linear(1, 1), t, dtype=["f23"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
dtypeguard.compare(nn.Linear(1, 1), t, dtype="f23")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
dtypeguard.compare(nn.Linear(1, 1), t, dtype="f64")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
dtypeguard.compare(nn.Linear(1, 1), t, region="f32")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
dtypeguard.dryrun(nn.Linear(1, 1), t, region="f32")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
dtypeguard.compare(nn.Linear(1, 1), t)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
testing.tensors(Tensor, dtype="int128")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
