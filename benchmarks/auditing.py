"""What an audit costs: in a training step, in memory, at its start and end, and where there is none."""

import gc
import statistics
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from time import perf_counter_ns

import torch
from bars import Context
from report import Row, Table, at_most, duration, exactly, times
from timing import Samples, interleave
from torch import Tensor, nn

import dtypeguard

ROUNDS, EARLY = 25, 4  # steps at the beginning of an audit: three of these look at everything, later one in fifty
TOY, REAL = 3.0, 1.2  # how many times as long a step may take
KEPT = 4  # MiB after a thousand steps: what is kept is bounded, and the bound is not reached by then

Setup = tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler | None, Callable[[], None]]


def toy(half: torch.dtype | None = None) -> Setup:
    """A step in which almost everything is overhead."""
    return setup(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), torch.randn(32, 16), half)


def encoder(half: torch.dtype | None = None) -> Setup:
    """A small step of a real kind."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return setup(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(8, 64, 256), half)


def setup(model: nn.Module, x: Tensor, half: torch.dtype | None) -> Setup:
    """A model and its training step, under autocast where a dtype is named, and scaled in float16."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu") if half is torch.float16 else None

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=half, enabled=half is not None):
            loss: Tensor = model(x).float().square().mean()
        if scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    for _ in range(3):
        step()
    return model, optimizer, scaler, step


def timed(step: Callable[[], None], count: int) -> float:
    """ns of a step, after the early ones."""
    for _ in range(EARLY):
        step()
    gc.disable()
    try:
        start = perf_counter_ns()
        for _ in range(count):
            step()
        return (perf_counter_ns() - start) / count
    finally:
        gc.enable()


def steps(case: Setup, count: int) -> Samples:
    """ns of a step, bare and in an audit: `count` of them each, in turn, after the early ones."""
    model, optimizer, scaler, step = case
    rounds: dict[str, list[float]] = {"bare": [], "audited": []}

    for number in range(2 * ROUNDS):
        if number % 4 in (0, 3):  # whichever comes first in a round comes second in the next
            rounds["bare"].append(timed(step, count))
        else:
            with dtypeguard.audit(model, optimizer, scaler):
                rounds["audited"].append(timed(step, count))
    return Samples(rounds)


def kept(count: int) -> int:
    """Bytes of Python that an audit of the toy holds after so many steps."""
    model, optimizer, scaler, step = toy()
    with dtypeguard.audit(model, optimizer, scaler):  # what is cached for good
        step()
    gc.collect()
    tracemalloc.start()
    try:
        with dtypeguard.audit(model, optimizer, scaler):
            for _ in range(count):
                step()
            gc.collect()
            return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def ends() -> float:
    """ns to begin and end an audit of the toy."""
    model, optimizer, scaler, _ = toy()

    def empty() -> None:
        with dtypeguard.audit(model, optimizer, scaler):
            pass

    return interleave({"empty": (empty, ())}, 1).median("empty")


_PROBE = """
import sys, time, torch, dtypeguard
rooms = "dtypeguard._tools.audit", "dtypeguard._engine.watch", "dtypeguard._rules"
loaded = sum(name.startswith(rooms) for name in sys.modules)
start = time.perf_counter_ns()
dtypeguard.audit
print(loaded, time.perf_counter_ns() - start)
"""


def imported() -> tuple[int, float]:
    """How many modules of the audit `import dtypeguard` brings in; ns to import them when they are asked for."""
    command = [sys.executable, "-c", _PROBE]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(5)]
    return max(int(loaded) for loaded, _ in runs), statistics.median(int(ns) for _, ns in runs)


def auditing(context: Context) -> Table:
    """A training step in an audit."""
    table = Table(
        "`audit`",
        f"Training steps in turn with and without it, {2 * ROUNDS} times: a toy (`Linear` 16-32-4, batch 32) and a "
        "`TransformerEncoder` (d=256, 4 layers, 4 heads, ff 1024, batch 8 x 64), both with AdamW. The "
        f"first {EARLY} steps of each audit are not timed: they look at everything, and cost more. Memory is what "
        "`tracemalloc` sees, tensors not included.",
        ("what", "here", "against no audit"),
    )
    for what, case, count, limit in (
        ("toy", toy(), 50, TOY),
        ("toy, float16 autocast with GradScaler", toy(torch.float16), 50, TOY),
        ("encoder", encoder(), 3, REAL),
        ("encoder, bfloat16 autocast", encoder(torch.bfloat16), 3, REAL),
    ):
        samples = steps(case, count)
        ratio, audited = samples.ratio("audited", "bare"), duration(samples.median("audited"))
        table.rows.append(Row(f"a step of the {what}", audited, times(ratio), at_most(limit, times(limit)), ratio))
    table.rows.append(Row("to begin and end it", duration(ends())))
    for count in (1, 100, 1000):
        size = kept(count) / 2**20
        table.rows.append(Row(f"kept after {count:,} steps", f"{size:.2f} MiB", "", at_most(KEPT, f"{KEPT} MiB"), size))
    modules, ns = imported()
    table.rows.append(Row("its modules that `import dtypeguard` loads", str(modules), "", exactly(0, "0"), modules))
    table.rows.append(Row("to import them when they are asked for", duration(ns)))
    return table
