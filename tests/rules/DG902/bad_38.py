import torch

torch.manual_seed(0)
volume = (1.5 + torch.rand(64)) * 1e8
start = volume.clone()
rate = 0.02 + 0.01 * torch.rand(64)
for step in range(2000):
    volume = volume + 60.0 * rate * (volume / start)
change = (volume - start).double()  # expect: DG902 "`volume - start`: an error of <...> comes in, <...> goes out: 0 where float64 has <...>; it reaches a number that the program reads; rounded in float32: volume + 60.0 * rate * (volume / start) at program.py:8, in <module>"
print(change.mean().item())
# fix: keep the total in float64: each addend is less than a unit of it; or add up what changes alone
