import torch

rate = torch.tensor([2e-8, 7e-8]).repeat(32)
failed = torch.zeros(64)
for hour in range(50):
    chance = 1 - torch.exp(-rate)  # expect: DG902 "`1 - torch.exp(-rate)`: an error of 6e-06 % comes in, 39 % goes out: 0 where float64 has 2e-08; it reaches a number that the program reads; rounded in float32: torch.tensor([2e-8, 7e-8]) at program.py:3, in <module>"
    failed += (1 - failed) * chance
print(failed.sum().item())
