import torch

logits = torch.tensor([1.0, 200.0]).bfloat16()
total = torch.exp(logits).sum()  # expect: DG901 "`torch.exp(logits)`: 1 of 2 values become infinite or NaN in bfloat16; it reaches a number that the program reads"
print(total.log().item())
# fix: softmax, log_softmax and logsumexp subtract the largest value before they call exp: use the one that this is a part of, or clamp what goes in
