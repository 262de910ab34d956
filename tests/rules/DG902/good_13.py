import torch
from torch import nn

# The ratio of two log probabilities of a policy that has hardly moved: its noise is that of the policy in bfloat16.
torch.manual_seed(0)
policy, states = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 200)), torch.randn(64, 16)
actions = torch.randint(200, (64, 1))
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5)


def log_probability():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = policy(states)
    return logits.float().log_softmax(-1).gather(-1, actions)


for _ in range(5):
    reward = (actions % 2 == 0).float()
    advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
    old = log_probability().detach()
    for _ in range(2):
        ratio = (log_probability() - old).exp()
        loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(type(loss))
