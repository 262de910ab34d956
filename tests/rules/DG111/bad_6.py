import torch

scores = torch.randn(4, 4)
causal = torch.ones(4, 4).tril().bool()
weights = (scores + causal).softmax(-1)  # expect: DG111 "the mask of softmax is bool and holds only 0 and 1: it is added to the scores, and masks nothing"
