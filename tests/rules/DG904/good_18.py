import torch

torch.manual_seed(0)
waves = 400 * torch.sin(torch.rand(8, 10_000) * torch.pi)
peak, _ = waves.max(dim=-1)  # any of the largest has it
print(peak, waves.max(dim=-1).values, torch.max(waves, -1)[0])
