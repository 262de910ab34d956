import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Linear(8, 1)

    def forward(self, state):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.value(state)


torch.manual_seed(0)
critic, states, returns = Critic(), torch.randn(32, 8), torch.randn(32, 1)
predicted = critic(states)
loss = 0.5 * nn.functional.huber_loss(predicted, returns.to(predicted.dtype))  # expect: DG210 "`nn.functional.huber_loss(...)` gets bfloat16, which left an autocast region at program.py:12, in forward: the loss is bfloat16, in the region float32"
torch.autograd.backward(loss)
# fix: compute the loss inside the region, or from `.float()` of what leaves it
