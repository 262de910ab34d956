import torch

torch.manual_seed(0)
betas = torch.linspace(1e-4, 2e-2, 300, dtype=torch.float16)
alpha_bar = torch.cumprod(1.0 - betas, dim=0)
x = torch.randn(64)
for t in range(299, -1, -1):
    beta, kept = betas[t].float(), alpha_bar[t].float()
    noise = x * kept.sqrt()
    x = (x - beta / (1.0 - kept).clamp_min(1e-12).sqrt() * noise) / (1.0 - beta).sqrt()  # expect: DG902 "`(x - beta / (1.0 - kept).clamp_min(1e-12).sqrt() * noise)...`: an error of 0.4 % comes in, more than 1000 % goes out: <...> where float64 has <...>; it reaches a number that the program reads; rounded in float16: torch.linspace(1e-4, 2e-2, 300, dtype=torch.float16) at program.py:4, in <module>"
print(x.abs().mean().item())
# fix: give `torch.linspace(1e-4, 2e-2, 300, dtype=torch.float16)` the dtype float32, and cast only what is computed from it
