import torch

torch.manual_seed(0)
pressure = torch.randn(4000) * 60 + 101325
count, total, squares = 0, torch.zeros(()), torch.zeros(())
for part in pressure.split(100):
    count += len(part)
    total = total + part.sum()
    squares = squares + part.square().sum()
deviation = (squares / count - (total / count) ** 2).sqrt()  # expect: DG902 "`squares / count - (total / count) ** 2`: an error of 1.1e-05 % comes in, 15 % goes out: 4096 where float64 has 3552; it reaches a number that the program reads; rounded in float32: part.square() at program.py:9, in <module>"
print(f"{deviation:.2f} Pa")
# fix: compute `squares / count - (total / count) ** 2` and what it is computed from, beginning with `part.square()` at line 9, in float64
