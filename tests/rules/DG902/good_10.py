import torch
from torch.distributions import Categorical

torch.manual_seed(0)
policy = torch.nn.Linear(8, 4000)
first = Categorical(logits=policy(torch.randn(6, 8)))
again = Categorical(logits=first.logits)
print(again.logits.logsumexp(-1).tolist(), again.entropy().mean().item())
