import torch

torch.manual_seed(0)
probs = torch.zeros(512, 50_000, dtype=torch.float16)
probs[:, 7] = 1
tokens = torch.multinomial(probs, 1)  # expect: DG116 "`torch.multinomial(probs, 1)` takes exponential numbers that were drawn in float16 inside: about one in 30 million of them is 0, and draws what has the probability 0, in float32 none"
print((tokens != 7).sum().item())
