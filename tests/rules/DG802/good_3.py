import torch


def positive(x):
    return (x > 0).to(dtype=torch.float32)


traced = torch.jit.trace(positive, torch.ones(3))
