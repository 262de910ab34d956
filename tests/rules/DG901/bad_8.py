import torch

weights = torch.tensor([0.5, 1e-8, 0.25]).half()
noise = torch.tensor([1.0, 1e-8, 2.0]).half()
scores = weights / noise  # expect: DG901 "`weights / noise`: 1 of 3 values become infinite or NaN in float16, where float32 has 1; it reaches a choice"
print(scores.argmax().tolist())
