import torch

torch.manual_seed(0)
weight = torch.randn(48, 64) * torch.logspace(-4, 2, 48)[:, None]
scale = weight.abs().amax(1, keepdim=True) / 448
stored = (weight / scale).to(torch.float8_e4m3fn)
noise = stored.float() * scale - weight
quality = 10 * torch.log10(weight.square().sum() / noise.square().sum())
print(f"{quality.item():.1f} dB", (noise.abs() / weight.abs()).median().item())
