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
    group.allgather(gathered, [total]).wait()  # expect: DG701 "all_gather: rank 0 has int32[2], rank 1 has float32[2]"


with ThreadPoolExecutor(2) as ranks:
    list(ranks.map(run, range(2)))
