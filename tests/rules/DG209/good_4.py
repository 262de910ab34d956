import torch
from torch import nn


class Half:
    """A context manager of the program's own."""

    def __enter__(self):
        self.amp = torch.autocast("cpu", dtype=torch.bfloat16)
        self.amp.__enter__()

    def __exit__(self, *error):
        self.amp.__exit__(*error)


net, x = nn.Linear(4, 4), torch.ones(3, 4)
with Half():
    y = net(x)
print(torch.linalg.matrix_norm(y.float()).item())
