import torch
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function


class Linear(Function):
    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    @custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x


x, weight = torch.randn(2, 4), torch.randn(3, 4, requires_grad=True)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = Linear.apply(x, weight)
y.sum().backward()
