import torch


class SpecifyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gradient):
        ctx.save_for_backward(gradient)
        return x.new_ones(())

    @staticmethod
    def backward(ctx, grad_output):
        (gradient,) = ctx.saved_tensors
        return gradient, None  # expect: DG207 "the gradient that `SpecifyGradient.backward` returns does not depend on the one that comes in, which is multiplied by the scale 65536"


latent = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD([latent], lr=0.01)
scaler = torch.amp.GradScaler("cpu")
loss = SpecifyGradient.apply(latent, torch.randn(4))
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
# fix: multiply by the gradient that comes in: `return gradient * grad_output`
