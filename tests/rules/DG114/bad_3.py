import torch

codes = torch.tensor([-128, 0, 127], dtype=torch.int8)
assert not (codes < 128).any()  # expect: DG114 "`codes < 128`: 128 becomes -128 in int8, and 3 of 3 results are wrong"
