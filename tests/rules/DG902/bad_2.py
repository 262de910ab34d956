import torch
import torch.nn.functional as F

logits = torch.tensor([[8.0]])
with torch.autocast("cpu", dtype=torch.bfloat16):
    p = torch.sigmoid(logits.bfloat16())
    loss = F.binary_cross_entropy(p.float(), torch.zeros(1, 1))  # expect: DG902 "`F.binary_cross_entropy(p.float(), torch.zeros(1, 1))`: an error of 0.034 % comes in, more than 1000 % goes out: 100 where float64 has 8; it reaches a number that the program reads; rounded in bfloat16: torch.sigmoid(logits.bfloat16()) at program.py:6, in <module>"
print(loss.item())
