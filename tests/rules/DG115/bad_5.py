import torch

probabilities = torch.tensor([0.25, 0.5, 1.0], dtype=torch.bfloat16)
removed = probabilities <= 1 - 0.001  # expect: DG115 "`probabilities <= 1 - 0.001`: 0.999 becomes 1 in bfloat16"
print(removed.tolist())
