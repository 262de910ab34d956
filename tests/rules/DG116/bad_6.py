import torch

torch.manual_seed(0)
probs = torch.softmax(torch.randn(64, 20_000).half(), dim=-1)
race = torch.empty_like(probs).exponential_(100)
chosen = (probs / race).argmax(dim=-1)  # expect: DG116 "`probs / race` takes exponential numbers that were drawn in float16 at program.py:5, in <module>: about one in 30 million of them is 0, in float32 none"
print(probs.gather(-1, chosen[:, None]).min().item())
