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
