import torch

power = torch.ones((), dtype=torch.float16)
while (power * 2).isfinite():  # the program asks, and goes on without it
    power = power * 2
print(power.item())
