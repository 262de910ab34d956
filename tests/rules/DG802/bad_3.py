import torch


def positive(x):
    return (x > 0).to(dtype=x.dtype)


traced = torch.jit.trace(positive, torch.ones(3))  # expect: DG802 "the trace holds `to` at program.py:5 as float32"
