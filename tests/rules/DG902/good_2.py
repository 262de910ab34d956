import torch
import torch.nn.functional as F

logits = torch.tensor([[8.0]])
with torch.autocast("cpu", dtype=torch.bfloat16):
    loss = F.binary_cross_entropy_with_logits(logits.bfloat16(), torch.zeros(1, 1))
print(loss.item())
