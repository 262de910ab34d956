import torch

visited = torch.zeros(6, dtype=torch.bool)
for start in range(5):
    visited += torch.arange(6) <= start  # a union of masks
weights = visited.float() / visited.sum()
votes = torch.zeros(6, 3, dtype=torch.int64)
for member in range(5):
    votes += torch.nn.functional.one_hot(torch.arange(6) % (member // 2 + 1), 3).bool()
winner = votes.argmax(1)
