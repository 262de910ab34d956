import torch

scores = torch.randn(1, 3, 3)
mask = torch.tensor([[[1, 1, 0]]])
weights = (scores + mask).softmax(-1)  # expect: DG111 "the mask of softmax is int64 and holds only 0 and 1: it is added to the scores, and masks nothing"
