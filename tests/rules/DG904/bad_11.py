import torch

levels = torch.tensor([0.05, 0.1, 0.2, 0.25, 0.5])
dose = levels[torch.arange(40) % 5].half()
match = levels[None, :] == dose[:, None]  # expect: DG904 "`levels[None, :] == dose[:, None]`: 24 of 40 equal values are not found: 0.0500000007 for 0.049987793; rounded in float16: levels[torch.arange(40) % 5].half() at program.py:4, in <module>"
print(match.any(1).sum().item())
