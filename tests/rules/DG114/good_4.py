import torch

target, lengths = torch.tensor([0, 255], dtype=torch.uint8), torch.tensor([-1, 300])
shorter = target < lengths
near = target < 99.5
levels = target.clamp(0, 128)
same = torch.eq(target, -1, out=torch.zeros(2, dtype=torch.bool))
