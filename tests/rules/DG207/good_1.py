import torch


class SpecifyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gradient):
        ctx.save_for_backward(gradient)
        return x.new_ones(())

    @staticmethod
    def backward(ctx, grad_output):
        (gradient,) = ctx.saved_tensors
        return gradient * grad_output, None


latent = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD([latent], lr=0.01)
scaler = torch.amp.GradScaler("cpu")
loss = SpecifyGradient.apply(latent, torch.randn(4))
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
