import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def step(self):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = -self.critic(torch.ones(3, 4)).mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()  # expect: DG306 "the loss given to `scaler.scale` is float16"
        self.scaler.step(self.optimizer)
        self.scaler.update()


torch.manual_seed(0)
trainer = Trainer()
for _ in range(3):
    trainer.step()
# fix: compute the loss in float32: `.float()` on the model's output in `-self.critic(torch.ones(3, 4)).mean()`
