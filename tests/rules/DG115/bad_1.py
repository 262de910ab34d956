import torch

decay = torch.tensor(0.9985, dtype=torch.bfloat16)  # expect: DG115 "`torch.tensor(0.9985, dtype=torch.bfloat16)`: 0.9985 becomes 1 in bfloat16"
average = torch.ones(4)
for step in range(10):
    average = average * decay + torch.rand(4) * (1 - decay)
# fix: keep it as a number of Python, or in float32: `torch.tensor(0.9985)`
