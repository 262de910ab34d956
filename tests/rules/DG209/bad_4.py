import torch
from torch import nn


class Extractor:
    def __init__(self, net):
        self.net, self.amp = net, torch.autocast("cpu", dtype=torch.bfloat16)
        self.amp.__enter__()  # expect: DG209 info "`self.amp.__enter__()` in function `__init__` is open to the end: program.py:11, in __call__ runs under autocast"

    def __call__(self, x):
        return self.net(x).float()


x = torch.ones(3, 4)
features = Extractor(nn.Linear(4, 4))(x)
print(torch.linalg.matrix_norm(features.T @ features).item())
# As nobody leaves it, what follows in this process would run in it.
torch.autocast_decrement_nesting()
torch.clear_autocast_cache()
torch.set_autocast_enabled("cpu", False)
# fix: enter it with `with` around what is to be cast; leave it, where the whole program is
