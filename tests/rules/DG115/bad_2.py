import torch

x = torch.zeros(4, dtype=torch.float16)
eps = torch.tensor(1e-8).half()  # expect: DG115 "`torch.tensor(1e-8).half()`: 1e-08 becomes 0 in float16"
share = x.float() / (x.abs() + eps).float().clamp(min=1e-3)
