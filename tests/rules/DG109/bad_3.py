import torch

hidden = torch.tensor([1, 0, 1, 0], dtype=torch.uint8)
x = torch.tensor([1.0, 2.0, 3.0, 5.0])
kept = ~hidden  # expect: DG109 "`~hidden`: of 0 and 1 in uint8 it makes 255 and 254, which both are true"
mean = (x * kept).sum() / kept.sum()
