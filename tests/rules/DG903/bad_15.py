import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 2)
        self.register_buffer("served", torch.zeros(()))

    def forward(self, x):
        self.served += len(x)  # expect: DG903 "`self.served += len(x)`: a total stands still: 1024 where float32 has 2400; it reaches a number that the program reads"
        return self.out(x)


model = Decoder().to(torch.bfloat16)
with torch.inference_mode():
    for _ in range(600):
        model(torch.ones(4, 4, dtype=torch.bfloat16))
print(int(model.served))
# fix: keep the total in float32, whatever is added: buffer `Decoder.served` is narrowed with its module
