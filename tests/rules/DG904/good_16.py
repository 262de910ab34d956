import torch

torch.manual_seed(0)
cents = [(7919 * n) % 200_000 - 90_000 for n in range(2000)]
amounts = torch.tensor([n / 100 for n in cents], dtype=torch.float64)
ours = ((amounts.cumsum(0) + 52_000_000) * 100).round().long()
levels = torch.tensor([n / 777 for n in range(-700, 700)])
samples = (levels.double() * 2**31).round().clamp(-(2**31), 2**31 - 1).long()  # no numbers that are whole
images = torch.nn.functional.normalize(torch.randn(200, 64), dim=1)
texts = torch.nn.functional.normalize(images + torch.randn(200, 64) * 0.4, dim=1)
similar = texts.bfloat16() @ images.bfloat16().T
ranks = (similar > similar.diagonal()[:, None]).sum(1)  # few of which are others
print(ours[-1].item(), ranks.float().mean().item())
