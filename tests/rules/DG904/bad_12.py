import torch

temperatures = (torch.arange(80) / 80 + 100).bfloat16()
hot = 0
for temperature in temperatures:
    hot += 1 if temperature > 100.6 else 0  # expect: DG904 "`temperature > 100.6`: 11 of 80 come out otherwise than in float32: 0 instead of 1; rounded in bfloat16: (torch.arange(80) / 80 + 100).bfloat16() at program.py:3, in <module>"
print(hot)
