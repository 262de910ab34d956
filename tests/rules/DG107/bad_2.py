import torch

rows = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
buffer = torch.zeros(2, 3)
buffer[0] = rows  # expect: DG107 "`buffer[0] = rows` writes float64 into a float32 tensor, rounded"
