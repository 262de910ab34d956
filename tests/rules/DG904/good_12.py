import numpy as np
import torch

values = torch.rand(1000, generator=torch.Generator().manual_seed(0))
cuts = torch.from_numpy(np.arange(4, 11) / 10)
scores = (values * 10).round() / 10
steps = torch.arange(12.0) / 4
print((values[:, None] >= cuts).float().mean(0).tolist())  # no score is the rounding of a cut
print((steps[:, None] >= torch.tensor([0.25, 0.5], dtype=torch.float64)).sum(0).tolist())  # these are no roundings
print((scores[:, None] >= cuts.to(torch.float32)).float().mean(0).tolist())
print((scores > scores.double() - 1e-9).all().item(), (torch.zeros(9, 1) < cuts * 1e-60).all().item())
