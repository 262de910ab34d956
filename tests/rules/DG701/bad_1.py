from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

store = dist.HashStore()


def run(rank):
    group = dist.ProcessGroupGloo(store, rank, 2)
    x = torch.ones(4, dtype=torch.bfloat16 if rank == 0 else torch.float16)
    group.allreduce([x]).wait()  # expect: DG701 "all_reduce: rank 0 has bfloat16[4], rank 1 has float16[4]"


with ThreadPoolExecutor(2) as ranks:
    list(ranks.map(run, range(2)))
# fix: give every rank the same dtype and shape: `.to(...)` before the collective, `dtype=` where the tensor is made
