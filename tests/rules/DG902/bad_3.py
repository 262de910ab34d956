import torch

positions = torch.arange(256.0) + 0.5
frequencies = torch.tensor([1.0, 0.1])
angles = (positions[:, None] * frequencies).bfloat16()
table = angles.cos()  # expect: DG902 "`angles.cos()`: an error of 0.39 % comes in, 50 % goes out: 0.2412 where float32 has -0.2538; it reaches values that the program reads; rounded in bfloat16: (positions[:, None] * frequencies).bfloat16() at program.py:5, in <module>"
print(table.sum().item(), table.tolist()[200])
