import torch

labels = torch.zeros(3, dtype=torch.int64)
labels[1] = 0.9  # expect: DG106 "`labels[1] = 0.9` writes 0.9 into int64: it becomes 0"
