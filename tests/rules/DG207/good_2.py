import torch


class Clamped(torch.autograd.Function):
    """Straight through, and nothing where it is outside; nothing at all for the bound."""

    @staticmethod
    def forward(ctx, x, bound):
        ctx.save_for_backward(x.abs() <= bound)
        return x.clamp(-bound, bound)

    @staticmethod
    def backward(ctx, grad_output):
        (inside,) = ctx.saved_tensors
        result = torch.zeros_like(grad_output)
        result[inside] = grad_output[inside]
        return result, None


class Frozen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return torch.zeros(4)


weight = torch.linspace(-1, 1, 4).requires_grad_()
optimizer = torch.optim.SGD([weight], lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
loss = (Clamped.apply(weight, 0.5) * 3 + Frozen.apply(weight)).sum()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
