import torch

power = torch.ones((), dtype=torch.float16)
while (power * 2).isfinite():  # expect: DG901 info "`power * 2`: 1 of 1 values become infinite or NaN in float16, where float32 has 65536"
    power = power * 2
print(power.item())
