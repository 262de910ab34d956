import torch

scores = torch.randn(2, 4, 8, 8)
mask = torch.ones(8, 8).tril()
weights = (scores + mask).softmax(-1)  # expect: DG111 "the mask of softmax is float32 and holds only 0 and 1: it is added to the scores, and masks nothing"
