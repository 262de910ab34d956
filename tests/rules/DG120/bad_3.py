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
    slopes = torch.autograd.grad(scaler.scale(score), list(critic.parameters()), create_graph=True)  # expect: DG120 "`torch.autograd.grad(...)` gives gradients times the scale, 1024, and the loss has them as they are"
    loss = score + torch.cat([slope.flatten() for slope in slopes]).norm()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
# fix: divide the gradients by `scaler.get_scale()` before anything is computed from them
