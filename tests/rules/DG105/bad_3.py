import torch

least = torch.finfo(torch.float16).min
causal = torch.full((3, 3), least).triu(1).half()
padding = torch.zeros(3, 3).half()
padding[:, 0] = least
scores = torch.full((3, 3), -40.0).half()
weights = (scores + torch.minimum(causal, padding)).softmax(-1)  # expect: DG105 "`scores + torch.minimum(causal, padding)` makes 6 of 9 finite values infinite in float16, whose largest value is 65504"
