import torch

torch.manual_seed(0)
sound = torch.rand(4096).bfloat16() * 2 - 1
codes = ((sound + 1) / 2 * 255).round().long()
table = torch.linspace(-1, 1, 256)
print((table[codes] - sound.float()).abs().max().item() < 0.01)
