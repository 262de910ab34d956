import torch
from torch import nn
from torch.nn.functional import normalize


class Similarity(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8, dtype=torch.bfloat16)
        self.logit_scale = nn.Parameter(torch.tensor(2.66))

    def forward(self, x):
        y = normalize(self.body(x), dim=-1)
        return self.logit_scale.exp() * (y @ y.t())


model = Similarity()
loss = model(torch.ones(3, 8).bfloat16()).float().sum()  # expect: DG506 "`logit_scale`: float32, where the other parameters of Similarity are bfloat16"
