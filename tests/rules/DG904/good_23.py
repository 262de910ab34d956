import torch

torch.manual_seed(0)
logits = (2 * torch.randn(4, 8000)).to(torch.bfloat16)
ordered, places = logits.sort(descending=True)
kept = ordered.float().softmax(-1).cumsum(-1) < 0.9  # of the first places nearly all are the same
print(kept.sum(-1), places[:, 0])
