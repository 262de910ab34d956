import torch
from torch.autograd import Function


class Similarity(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ x.t()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (grad + grad.t()).sum(1, keepdim=True) * x


x = torch.randn(2, 4, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = Similarity.apply(x)  # expect: DG202 info "autograd.Function `Similarity` ran under autocast without `custom_fwd`; its backward mixes bfloat16 and float32 at program.py:14, in backward"
y.float().sum().backward()
