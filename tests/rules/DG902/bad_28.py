import torch

latitude = torch.tensor([40.1, 40.2, 40.3, 40.4])
steps = torch.tensor([1e-6, 2e-6, 3e-6, 4e-6])
moved = latitude + steps
print(((moved - latitude) * 111_000).tolist())  # expect: DG902 "`moved - latitude`: an error of 6.4e-06 % comes in, 66 % goes out: 3.815e-06 where float64 has 2e-06; it reaches values that the program reads; rounded in float32: latitude + steps at program.py:5, in <module>"
