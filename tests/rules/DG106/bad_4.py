import torch

labels = torch.tensor([[2], [0]])
targets = torch.zeros(2, 3, dtype=labels.dtype)
targets.scatter_(1, labels, 0.9)  # expect: DG106 "`targets.scatter_(1, labels, 0.9)` writes 0.9 into int64: it becomes 0"
