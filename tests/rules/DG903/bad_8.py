import torch

rate = torch.tensor(0.1, dtype=torch.bfloat16)
for step in range(400):
    rate = rate * 0.999  # expect: DG903 "`rate * 0.999`: it stands still, though it is computed anew each time: 0.1001 where float32 has 0.06702; it reaches a number that the program reads"
print(rate.item())
