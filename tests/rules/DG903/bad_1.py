import torch

total = torch.zeros((), dtype=torch.bfloat16)
for value in torch.ones(1000, dtype=torch.bfloat16):
    total = total + value  # expect: DG903 "`total + value`: a total stands still: 256 where float32 has 1000; it reaches a number that the program reads"
print(total.item())
# fix: keep the total in float32, whatever is added: `torch.zeros((), dtype=torch.float32)`
