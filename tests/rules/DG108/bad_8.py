import torch

frequencies = 10000.0 ** -(torch.arange(8) / 8)
timestep = torch.tensor([953.7]).to(torch.bfloat16)  # expect: DG108 "`torch.tensor([953.7]).to(torch.bfloat16)`: numbers up to 953.7 are off by up to 1.70001 in bfloat16: used as angles at program.py:6, in <module>"
angles = timestep.double() * frequencies
print(round(angles.cos().sum().item(), 3))
