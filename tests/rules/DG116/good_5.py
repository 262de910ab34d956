import torch

torch.manual_seed(0)
probs = torch.zeros(512, 50_000, dtype=torch.float16)
probs[:, 7] = 1
tokens = torch.multinomial(probs.float(), 1)
few = torch.multinomial(probs[:, :100], 1)
print((tokens != 7).sum().item(), (few != 7).sum().item())
