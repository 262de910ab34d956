import torch


def step(x):
    if x.dtype is not torch.float32:
        raise TypeError(f"expected dtype float32, got {x.dtype}")


step(torch.ones(2).double())
