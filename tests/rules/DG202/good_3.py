import torch
from torch import nn
from torch.autograd import Function


class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * s * (1 + x * (1 - s))


model = nn.Linear(4, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = Swish.apply(model(torch.randn(2, 4)))
y.float().sum().backward()
