import torch
from torch import nn


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(256, 8)

    def forward(self, x):
        return self.score(x.float()).softmax(-1)  # expect: DG104 info "the same bfloat16 tensor of 256.0 KiB was cast to float32 12 times, 6.0 MiB in all, and it did not change"


router, batch = Router(), torch.randn(512, 256).bfloat16()
optimizer = torch.optim.SGD(router.parameters(), lr=0.1)
for _ in range(12):  # one batch is learned by heart, to try the loop
    optimizer.zero_grad()
    router(batch).amax(-1).mean().neg().backward()
    optimizer.step()
