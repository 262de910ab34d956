import torch

bias = torch.tensor([8.001, 8.0125, 8.010]).bfloat16()
scores = torch.zeros(1, 3)
expert = (scores + bias.float()).argmax(-1)  # expect: DG904 "`(scores + bias.float()).argmax(-1)`: 1 of 1 comes out otherwise than in float64: 0 instead of 1; rounded in bfloat16: torch.tensor([8.001, 8.0125, 8.010]).bfloat16() at program.py:3, in <module>"
print(expert.tolist())
# fix: stay in float32: `torch.tensor([8.001, 8.0125, 8.010]).bfloat16()` rounds
