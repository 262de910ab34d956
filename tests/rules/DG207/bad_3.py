import torch


class Guidance(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, noise):
        ctx.noise = noise
        return x.sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        return torch.full_like(ctx.noise, 3.0), None  # expect: DG207 "the gradient that `Guidance.backward` returns does not depend on the one that comes in, which is multiplied by the scale 256"


image = torch.zeros(3, 4, requires_grad=True)
optimizer = torch.optim.Adam([image], lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
loss = Guidance.apply(image * 2, torch.randn(3, 4)) + image.square().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
