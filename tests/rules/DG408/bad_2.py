import torch
from torch import nn

import dtypeguard

model = nn.ParameterDict({"logits": nn.Parameter(torch.tensor([20.0, -1.0], dtype=torch.bfloat16))})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(model, optimizer)
survival = torch.log1p(-model["logits"].sigmoid()).exp()
(1 - survival.prod()).backward()
optimizer.step()  # expect: DG408 "gradients of `a parameter of shape [2]` (1 of 1 parameters with a gradient) are not finite"
