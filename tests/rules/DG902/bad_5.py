import torch


def embedding(time):
    rates = torch.exp(-torch.arange(4, dtype=torch.float64))
    angles = time.double()[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], -1)  # expect: DG902 "`angles.sin()`: an error of 0.16 % comes in, 112 % goes out: 0.8269 where float64 has -0.5943; it reaches a number that the program reads; rounded in bfloat16: torch.tensor([998.39, 987.17]).to(torch.bfloat16) at program.py:10, in <module>"


times = torch.tensor([998.39, 987.17]).to(torch.bfloat16)
print(embedding(times).sum().item())
