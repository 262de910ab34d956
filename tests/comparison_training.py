"""What tools that choose the precision of a training run do, and tools that watch one: rows of two tables in the docs.

A row's docstring is its title, and its program is the same for each tool.
"""

import contextlib
import copy
import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from comparison_checkers import world
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.utils import clip_grad_norm_

import dtypeguard

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
OURS, FSDP, LIGHTNING = "dtypeguard", "FSDP2's `MixedPrecisionPolicy`", "Lightning's precision plugins"
ANOMALY, DEBUG = "`torch.autograd.set_detect_anomaly`", "`torch.utils._debug_mode.DebugMode`"
Answer = bool | str


# ---------------------------------------------------------------- tools that choose a precision


class Seen(nn.Module):
    """Keeps what its forward gets, and the dtype in which its layer computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Any, time: Any = None) -> Any:
        self.x, self.time = x, time
        out = self.layer(x)
        self.computed = out.dtype
        return out


def fabric(precision: str) -> Any:
    from lightning.fabric import Fabric
    from lightning.fabric.plugins.precision import MixedPrecision

    if precision == "16-mixed":  # which Fabric itself does not choose for a CPU
        return Fabric(accelerator="cpu", devices=1, plugins=MixedPrecision("16-mixed", "cpu"))
    return Fabric(accelerator="cpu", devices=1, precision=precision)


@contextmanager
def half(tool: str) -> Iterator[tuple[Seen, Any]]:
    """A model in bfloat16 whose inputs the tool casts, and how it is called."""
    model = Seen()
    if tool == OURS:
        yield model, dtypeguard.guard(model.to(BF16))
    elif tool == LIGHTNING:
        yield model, fabric("bf16-true").setup(model)
    else:
        with world() as mesh:
            yield model, fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=BF16))


def inputs(tool: str) -> Answer:
    """casts the inputs of a bfloat16 model"""
    with half(tool) as (model, call):
        call(torch.ones(1, 2))
    return model.x.dtype is BF16


def warns(tool: str) -> Answer:
    """says that it casts, and where"""
    with half(tool) as (_, call), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call(torch.ones(1, 2))
    return any("bfloat16" in str(warning.message) and warning.filename == __file__ for warning in said)


def raises(tool: str) -> Answer:
    """can raise an error instead"""
    with half(tool) as (_, call), dtypeguard.mode("strict"):
        try:
            call(torch.ones(1, 2))
        except Exception:
            return True
        return False


def timesteps(tool: str) -> Answer:
    """leaves a float32 timestep beside a bfloat16 input as it is"""
    with half(tool) as (model, call):
        call(torch.ones(1, 2, dtype=BF16), torch.tensor([947.54]))
    return model.time.dtype is F32


def whole(tool: str) -> Answer:
    """refuses to make 1000 of a whole number 999"""
    with half(tool) as (_, call):
        try:
            call(torch.tensor([[999.0, 501.0]]))
        except Exception:
            return True
        return False


def master(tool: str) -> Answer:
    """computes in bfloat16 while the parameters stay float32"""
    if tool == FSDP:
        choosing: Any = half(tool)
    else:
        model = Seen()
        call = fabric("bf16-mixed").setup(model) if tool == LIGHTNING else dtypeguard.guard(model)
        choosing = contextlib.nullcontext((model, call))
    with choosing as (model, call):
        out = call(torch.ones(1, 2))
        if tool == FSDP:  # whose parameters are gathered until then
            out.sum().backward()
        weight = model.layer.weight.dtype
    return model.computed is BF16 and weight is F32


@contextmanager
def training(tool: str, model: Seen, optimizer: Any) -> Iterator[tuple[Any, Any, Any]]:
    """How a model is called, how its loss goes backward, and how the optimizer steps, in mixed precision."""
    scaler = torch.amp.GradScaler("cpu", enabled=model.layer.weight.dtype is F32)
    backward, step = (lambda loss: scaler.scale(loss).backward()), (lambda: (scaler.step(optimizer), scaler.update()))
    if tool == OURS:
        with dtypeguard.amp.watch(model, optimizer, scaler):
            yield model, backward, step
    elif tool == FSDP:
        yield model, backward, step
    else:
        runner = fabric("16-mixed" if scaler.is_enabled() else "bf16-true")
        call, stepped = runner.setup(model, optimizer)
        yield call, runner.backward, stepped.step


def said_in(tool: str, *, dtype: torch.dtype, lr: float, steps: int, clip: bool) -> str:
    """The warnings of a training run."""
    model = Seen().to(dtype)
    nn.init.ones_(model.layer.weight)
    nn.init.ones_(model.layer.bias)
    with contextlib.ExitStack() as stack:
        said = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        if tool == FSDP:
            fully_shard(model, mesh=stack.enter_context(world()), mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        call, backward, step = stack.enter_context(training(tool, model, optimizer))
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", F16, enabled=clip and tool == OURS):
                out = call(torch.ones(1, 2, dtype=dtype))
            backward(out.float().mean())
            if clip:
                clip_grad_norm_(model.parameters(), 1.0)
            step()
        return "\n".join(str(warning.message) for warning in said)


def clipped(tool: str) -> Answer:
    """finds gradients that are clipped before `scaler.unscale_`"""
    if "clip" in said_in(tool, dtype=F32, lr=0.1, steps=1, clip=True):
        return True
    if tool != LIGHTNING:
        return False
    model = Seen()
    runner = fabric("16-mixed")
    call, optimizer = runner.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    runner.backward(call(torch.ones(1, 2)).float().mean())
    norm = runner.clip_gradients(call, optimizer, max_norm=100.0)  # of the scaled gradients it is some ten thousand
    return "partly: its own `clip_gradients` unscales first" if norm < 10 else False


def lost(tool: str) -> Answer:
    """finds updates that a bfloat16 parameter rounds away"""
    return "did not move" in said_in(tool, dtype=BF16, lr=1e-5, steps=40, clip=False)


def scales(tool: str) -> Answer:
    """scales the loss for float16"""
    if tool == FSDP:
        with world() as mesh:
            model = fully_shard(Seen(), mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=F16))
            model(torch.ones(1, 2)).float().sum().backward()
            return bool(model.layer.bias.grad.full_tensor()[0] > 1)
    model = Seen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if tool == LIGHTNING:
        runner = fabric("16-mixed")
        call, _ = runner.setup(model, optimizer)
        runner.backward(call(torch.ones(1, 2)).sum())
    else:
        dtypeguard.guard(model)(torch.ones(1, 2)).sum().backward()
    return bool(model.layer.bias.grad[0] > 1)  # 1 is the gradient of the loss as it is


CHOOSING = (master, scales, inputs, warns, raises, timesteps, whole, clipped, lost)


# ---------------------------------------------------------------- tools that watch a program


def promoted() -> Tensor:
    hidden = torch.ones(2, 3, dtype=BF16)
    mask = torch.ones(3)
    return hidden * mask  # here


def stalled() -> float:
    total = torch.zeros((), dtype=BF16)
    for value in torch.ones(1000, dtype=BF16):
        total = total + value  # here
    return total.item()


def infinite() -> float:
    x = torch.zeros(3)
    y = x.log()  # here
    return (y + 1).sum().item()


def not_a_number() -> None:
    x = torch.zeros(3, requires_grad=True)
    y = x.sqrt()  # here
    torch.where(x > 0, y, x).sum().backward()


def debug_mode() -> Any:
    """`DebugMode`, which is private: not every version of PyTorch has it."""
    from torch.utils._debug_mode import DebugMode

    return DebugMode


def told(tool: str, program: Callable[[], Any]) -> tuple[str, bool]:
    """What a tool tells of a program, and whether it stops it."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if tool == OURS:
            with dtypeguard.audit(values=True) as report:
                program()
            return "\n".join(f"{finding.file}:{finding.line}" for finding in report.findings), False
        if tool == DEBUG:
            mode = debug_mode()
            with mode(record_stack_trace=True) as debug, mode.log_tensor_hashes():
                program()
            return debug.debug_string(show_stack_trace=True), False
        try:
            with torch.autograd.set_detect_anomaly(True):
                program()
        except RuntimeError as error:
            return "\n".join(str(part) for part in (error, *(warning.message for warning in said))), True
    return "", False


def names(tool: str, program: Callable[[], Any]) -> Answer:
    """Whether a tool names the line that is marked, and no other."""
    text, _ = told(tool, program)
    lines, first = inspect.getsourcelines(program)
    (marked,) = (number for number, line in enumerate(lines, first) if line.endswith("# here\n"))
    named = {int(line) for line in re.findall(rf'{re.escape(__file__)}(?:", line |:)(\d+)', text)}
    named &= set(range(first, first + len(lines)))
    return named == {marked} or ("partly: in a log of all operations" if marked in named else False)


def promotions(tool: str) -> Answer:
    """names the line that promotes bfloat16 to float32"""
    return names(tool, promoted)


def stalls(tool: str) -> Answer:
    """names the line of a bfloat16 total that stands still"""
    return names(tool, stalled)


def infinities(tool: str) -> Answer:
    """names the line where an infinity is born"""
    return names(tool, infinite)


def nans(tool: str) -> Answer:
    """names the line whose backward makes a NaN"""
    return names(tool, not_a_number)


def stops(tool: str) -> Answer:
    """stops the program at that NaN"""
    return told(tool, not_a_number)[1]


def lists(tool: str) -> Answer:
    """lists all operations, with dtypes and shapes"""
    return "aten::add.Tensor(t: f32[3], 1)  ->  t: f32[3]" in told(tool, infinite)[0]


class Cancels(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x + 100) - 100


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), Cancels(), nn.Linear(8, 2))


def layers(tool: str) -> Answer:
    """names the layer that bfloat16 harms most"""
    net, x = model(), torch.rand(16, 4)
    if tool == OURS:
        return max(dtypeguard.compare(net, x, dtype=BF16).layers, key=lambda layer: layer.share or 0).name == "1"
    if tool == DEBUG:
        logs = [_log(net, x), _log(copy.deepcopy(net).to(BF16), x.to(BF16))]
        return "partly: how far each operation is off" if debug_mode().check_hash_mismatches(*logs) else False
    return bool(told(tool, lambda: copy.deepcopy(net).to(BF16)(x.to(BF16)).sum().backward())[0])


def _log(net: nn.Module, x: Tensor) -> Any:
    mode = debug_mode()
    with mode() as debug, mode.log_tensor_hashes():
        net(x)
    return debug.logs


def runs(tool: str) -> Answer:
    """names the operation whose results differ between two runs"""
    net, x = model(), torch.rand(16, 4)
    other = copy.deepcopy(net)
    nn.init.zeros_(other[2].bias)
    if tool == DEBUG:
        return [found["call"] for found in debug_mode().check_hash_mismatches(_log(net, x), _log(other, x))] == [
            "aten::addmm"
        ]
    return any(told(tool, lambda net=net: net(x))[0] for net in (net, other))


WATCHING = (promotions, stalls, infinities, nans, stops, lists, runs, layers)
