import torch
from torch import nn


def embed(net, x):
    amp = torch.autocast("cpu", dtype=torch.float16)
    amp.__enter__()  # expect: DG209 "`amp.__enter__()` in function `embed` is open to the end: program.py:16, in <module> runs under autocast, and program.py:16 spoils values (DG105)"
    y = net(x)
    if y.isfinite().all():
        return y.float()
    amp.__exit__(None, None, None)
    return net(x)


phi = 30 * torch.ones(200, 3) + 0 * embed(nn.Linear(3, 3), torch.ones(200, 3))
gram = phi.T @ phi
print(gram.tolist())
torch.set_autocast_enabled("cpu", False)
# fix: enter it with `with` around what is to be cast; leave it, where the whole program is
