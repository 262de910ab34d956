import torch
from torch import nn


class Loader:
    def set_default(self, dtype):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)  # expect: DG602 "the default dtype is float16 since this line (float32 before), and an exception left `load` before it was set back: `torch.ones(2)` at program.py:22, in <module> is float16"
        return before

    def load(self, shards):
        before = self.set_default(torch.float16)
        parts = [torch.ones(2) * shard for shard in shards]
        torch.set_default_dtype(before)
        return parts


try:
    Loader().load(["broken"])
except TypeError:
    layer = nn.Linear(2, 2, dtype=torch.float32)
    scale = torch.ones(2)
torch.set_default_dtype(torch.float32)
