import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Linear(2, 1)
optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for _ in range(3):
    real = torch.randn(8, 2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.float16):
        score = critic(real).float().sum()
    slope = torch.autograd.grad(scaler.scale(score), real, create_graph=True)[0]  # expect: DG120 "`torch.autograd.grad(...)` gives gradients times the scale, 1024, and the loss has them as they are"
    loss = score + (slope.norm(dim=1) - 1).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
# fix: divide the gradients by `scaler.get_scale()` before anything is computed from them
