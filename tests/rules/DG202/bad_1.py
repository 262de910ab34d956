import torch
from torch.autograd import Function


class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x


x, weight = torch.randn(2, 4), torch.randn(3, 4, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = Linear.apply(x, weight)  # expect: DG202 "autograd.Function `Linear` ran under autocast without `custom_fwd`; its backward failed at program.py:14, in backward: expected m1 and m2 to have the same dtype, but got: c10::BFloat16 != float"
y.sum().backward()
# fix: decorate it: `@torch.amp.custom_fwd(device_type='cpu', cast_inputs=torch.float32)` on forward, `@torch.amp.custom_bwd(device_type='cpu')` on backward
