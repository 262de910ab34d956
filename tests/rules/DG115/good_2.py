import torch

scale = torch.tensor(1 / 3, dtype=torch.bfloat16)
temperature = torch.tensor(0.7).half()
one, zero = torch.tensor(1.0, dtype=torch.float16), torch.full((3,), 0.0, dtype=torch.bfloat16)
probabilities = torch.tensor([0.9999, 0.5, 0.1, 1e-9, 0.2], dtype=torch.float16)
y = torch.ones(3).bfloat16() * scale
