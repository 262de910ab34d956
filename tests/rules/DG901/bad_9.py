import torch

logits = torch.tensor([100.0, 2.0, -3.0])
loss = -torch.log(1 - torch.sigmoid(logits)).mean()  # expect: DG901 "`torch.log(1 - torch.sigmoid(logits))`: 1 of 3 values become infinite or NaN in float32; it reaches a number that the program reads"
print(loss.item())
# fix: write `torch.nn.functional.logsigmoid(-logits)`, which is finite and keeps its digits where the formula does not
