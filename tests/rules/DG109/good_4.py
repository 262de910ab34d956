import torch

picture = torch.tensor([-0.02, 0.5, 1.01])
pixels = (picture * 255).round().clamp(0, 255).to(torch.uint8)
negative = ~pixels
