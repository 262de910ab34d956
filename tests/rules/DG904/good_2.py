import torch

torch.manual_seed(0)
logits = torch.randn(64, 10) @ torch.randn(10, 10)
print(logits.bfloat16().argmax(-1).tolist())
