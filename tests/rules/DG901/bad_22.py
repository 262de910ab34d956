"""A loss scale by hand: gradients that overflow are dropped, and the scale is halved."""
import torch
from torch import nn

torch.manual_seed(0)
model, scale = nn.Linear(8, 4).half(), 2.0**20
masters = [p.detach().float() for p in model.parameters()]
for _ in range(16):
    out = model(torch.ones(1, 8).half()).float()  # expect: DG901 info "`model(torch.ones(1, 8).half()).float()`, in backward: <...> values become infinite or NaN in float16, where float32 has <...>"
    loss = (out - 1).square().sum()
    gradients = torch.autograd.grad(loss * scale, [*model.parameters()])
    gradients = [g.float() / scale for g in gradients]
    if not all(g.isfinite().all() for g in gradients):
        scale /= 2
        continue
    with torch.no_grad():
        for p, master, g in zip(model.parameters(), masters, gradients, strict=True):
            p.copy_(master.sub_(0.05 * g))
print(loss.item() < 1)
