import torch

target = torch.tensor([[0, 156], [3, 156]], dtype=torch.uint8)
ignore_index = torch.tensor(-100)
kept = target[target != ignore_index]  # expect: DG114 "`target != ignore_index`: -100 becomes 156 in uint8, and 2 of 4 results are wrong"
