import torch
from torch import nn


class SquareLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().mean()

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x / x.numel()  # expect: DG207 "the gradient that `SquareLoss.backward` returns does not depend on the one that comes in, which is multiplied by the scale 1024"


model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(2):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(torch.ones(2, 8))
    scaler.scale(SquareLoss.apply(out.float())).backward()
    scaler.step(optimizer)
    scaler.update()
