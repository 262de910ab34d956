"""DG701 ranks-disagree."""

from ..._watch.rule import Program, Rule, Severity

RULE = Rule(
    "DG701",
    "ranks-disagree",
    Severity.ERROR,
    summary="Ranks bring tensors of different dtypes or shapes to one collective.",
    says="{op}: {ranks}",
    fix=(
        "give every rank the same dtype and shape: `.to(...)` before the collective, `dtype=` where the tensor is made"
    ),
    why=(
        "Collectives send bytes. Where ranks hold different dtypes of one size they compute nonsense "
        "without an error; where sizes differ they hang or abort."
    ),
    sources=(
        "https://github.com/pytorch/pytorch/issues/150248",
        "https://github.com/modelscope/ms-swift/issues/9550",
    ),
)

BAD = [
    Program(
        """\
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

store = dist.HashStore()


def run(rank):
    group = dist.ProcessGroupGloo(store, rank, 2)
    x = torch.ones(4, dtype=torch.bfloat16 if rank == 0 else torch.float16)
    group.allreduce([x]).wait()


with ThreadPoolExecutor(2) as ranks:
    list(ranks.map(run, range(2)))
""",
        at=12,
        prints="all_reduce: rank 0 has bfloat16[4], rank 1 has float16[4]",
    ),
    Program(
        """\
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

store = dist.HashStore()


def run(rank):
    group = dist.ProcessGroupGloo(store, rank, 2)
    total = torch.tensor([3.5, 2.0])
    if rank == 0:
        total = torch.zeros(2, dtype=torch.int32)
    gathered = [[torch.empty_like(total), torch.empty_like(total)]]
    group.allgather(gathered, [total]).wait()


with ThreadPoolExecutor(2) as ranks:
    list(ranks.map(run, range(2)))
""",
        at=15,
        prints="all_gather: rank 0 has int32[2], rank 1 has float32[2]",
    ),
    Program(
        """\
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

store = dist.HashStore()


def run(rank):
    group = dist.ProcessGroupGloo(store, rank, 2)
    weight = torch.ones(3, 2)
    if rank == 1:
        weight = weight.t().contiguous()
    group.broadcast([weight]).wait()


with ThreadPoolExecutor(2) as ranks:
    list(ranks.map(run, range(2)))
""",
        at=14,
        prints="broadcast: rank 0 has float32[3, 2], rank 1 has float32[2, 3]",
        severity=Severity.WARNING,
    ),
]
GOOD = [
    Program("""\
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

store = dist.HashStore()


def run(rank):
    group = dist.ProcessGroupGloo(store, rank, 2)
    x = torch.ones(4, dtype=torch.bfloat16 if rank == 0 else torch.float16)
    group.allreduce([x.float()]).wait()


with ThreadPoolExecutor(2) as ranks:
    list(ranks.map(run, range(2)))
"""),
    Program("""\
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

store = dist.HashStore()


def run(rank):
    group = dist.ProcessGroupGloo(store, rank, 2)
    weight = torch.ones(3, 2)
    if rank == 1:
        weight = weight.flatten()
    group.broadcast([weight]).wait()


with ThreadPoolExecutor(2) as ranks:
    list(ranks.map(run, range(2)))
"""),
    Program("""\
import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(4, dtype=torch.float16)
dist.all_reduce(x)
dist.destroy_process_group()
"""),
]
