"""What the metrics of a watch cost a training step, in one process and in four."""

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from bars import Context
from report import Row, Table, at_most, duration
from torch import nn

from dtypeguard import amp

EVERY, RANKS, ROUNDS = 10, 4, 15
SHARE = 0.005  # of a step


def taken(work: Callable[[], Any]) -> float:
    """How long it takes, in ns."""
    start = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - start


def costs(group: Any = None) -> tuple[float, float]:
    """A training step, and what one step that is measured and told costs more; the step is the same in all ranks."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True), 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.randn(8, 64, 256)
    watch = amp.watch(model, optimizer, mode="off", metrics=1, ignore=["DG3", "DG4"])
    (watched,) = watch._optimizers
    meters = watch._meters

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    def told() -> None:
        meters.before(watched)
        meters.after(watched, watch._scaling)
        watch.metrics(group)

    steps, more = [], []
    for _ in range(ROUNDS):
        if group is None:
            steps.append(taken(step))
        elif not steps:
            step()
        for _ in range(10):
            if group is not None:
                dist.barrier()
            more.append(taken(told))
    return statistics.median(steps) if steps else 0.0, statistics.median(more)


def in_rank(rank: int, store: str, told: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    cost = costs(dist.group.WORLD)[1]
    if rank == 0:
        told.put(cost)
    dist.destroy_process_group()


def measuring(context: Context) -> Table:
    """Metrics at each tenth step."""
    step, alone = costs()
    table = Table(
        f"`watch.metrics`, each {EVERY}th step",
        "A `TransformerEncoder` (d=256, 4 layers, ff 1024, batch 8 x 64). To measure one step and to make numbers of "
        f"it, timed by themselves, as a share of {EVERY} steps of one rank, {duration(step)} each; {RANKS} ranks "
        "reduce with gloo on one machine.",
        ("ranks", "one measure", "share of a step"),
    )
    spawn = multiprocessing.get_context("spawn")
    told = spawn.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        team = [spawn.Process(target=in_rank, args=(rank, f"{folder}/store", told)) for rank in range(RANKS)]
        for process in team:
            process.start()
        for process in team:
            process.join()
    for ranks, cost in ((1, alone), (RANKS, told.get())):
        share = cost / EVERY / step
        bar = at_most(SHARE, f"{SHARE:.1%}")
        table.rows.append(Row(str(ranks), duration(cost), f"{share:.2%}", bar, share))
    return table
