import torch

mask = torch.full((3, 3), torch.finfo(torch.float32).min).triu(1)
scores = torch.zeros(3, 3).half()
weights = (scores + mask.half()).softmax(-1)  # expect: DG105 info "`mask.half()` makes 3 of 9 finite values infinite in float16, whose largest value is 65504"
