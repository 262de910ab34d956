import torch

rate = 1e-8 * torch.linspace(0.1, 2.9, 64)
failed = torch.zeros(64)
for hour in range(50):
    chance = 1 - torch.exp(-rate)  # expect: DG902 "`1 - torch.exp(-rate)`: an error of 6e-06 % comes in, 170 % goes out: 0 where float64 has 2.9e-08; it reaches a number that the program reads; rounded in float32: torch.exp(-rate) at program.py:6, in <module>"
    failed += (1 - failed) * chance
print(failed.sum().item())
