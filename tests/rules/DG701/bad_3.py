from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist

store = dist.HashStore()


def run(rank):
    group = dist.ProcessGroupGloo(store, rank, 2)
    weight = torch.ones(3, 2)
    if rank == 1:
        weight = weight.t().contiguous()
    group.broadcast([weight]).wait()  # expect: DG701 warning "broadcast: rank 0 has float32[3, 2], rank 1 has float32[2, 3]"


with ThreadPoolExecutor(2) as ranks:
    list(ranks.map(run, range(2)))
