import torch


class Softplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.nn.functional.softplus(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        grown = x.exp()  # expect: DG901 "`x.exp()`, in backward: 4 of 4 values become infinite or NaN in float32, where float64 has 2.688e+43; it reaches a gradient that a step uses and a parameter after a step"
        return gradient * grown / (1 + grown)


weight = torch.full((4,), 100.0, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
Softplus.apply(weight).sum().backward()
optimizer.step()
