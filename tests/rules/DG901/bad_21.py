import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 16).half()
weight, bias = (parameter.detach().float().clone() for parameter in model.parameters())
optimizer = torch.optim.SGD([weight, bias], lr=1.0)
depth = model(torch.randn(256, 8).half())
loss = 1e-4 * (depth - torch.randn(256, 16).half()).pow(2).mean()  # expect: DG901 "`(depth - torch.randn(256, 16).half()).pow(2).mean()`, in backward: 4096 of 4096 values become zero in float16, where float32 has 2.441e-08; it reaches a gradient that a step uses"
loss.backward()
weight.grad, bias.grad = (parameter.grad.float() for parameter in model.parameters())
optimizer.step()
