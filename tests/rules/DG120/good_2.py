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
    inverse = 1 / scaler.get_scale()
    slopes = [one * inverse for one in torch.autograd.grad(scaler.scale(score), critic.parameters(), create_graph=True)]
    loss = score + sum(slope.square().sum() for slope in slopes)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
