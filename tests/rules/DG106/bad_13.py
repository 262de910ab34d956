import torch

prices = torch.tensor([0.29, 0.57, 1.0, 1.13, 2.5, 19.99], dtype=torch.float64)
cents = (prices * 100).long()  # expect: DG106 "`(prices * 100).long()` casts float64 values to int64: 4 of 6 are a rounding below a whole number: 28.999999999999996 becomes 28"
print(cents.sum().item())
# fix: round first, as all values are meant to be whole: `.round()` before the cast
