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
