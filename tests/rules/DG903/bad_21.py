import torch
from torch import nn


class Warmup(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps += 1  # expect: DG903 "`self.steps += 1`: a total stands still: 256 where float32 has 400; it reaches a number that the program reads"
        return self.layer(x) * (self.steps / 400).clamp(max=1)


torch.manual_seed(0)
model = Warmup().to(torch.bfloat16)
for _ in range(400):
    out = model(torch.ones(2, 4, dtype=torch.bfloat16))
print(out.float().abs().sum().item() > 0, model.steps.item())
# fix: keep the total in float32, whatever is added: buffer `Warmup.steps` is narrowed with its module
