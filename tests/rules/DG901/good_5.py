"""The log probability of what is impossible is -inf."""

import torch

values = torch.tensor([0.0, 1.0, 2.0, 3.0])
log_prob = (torch.tensor(1.0) == values).type(torch.float32).log()
print(torch.logsumexp(log_prob, 0), log_prob.tolist())
