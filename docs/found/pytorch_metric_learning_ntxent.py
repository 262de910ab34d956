import torch
from pytorch_metric_learning.losses import NTXentLoss

torch.manual_seed(0)
embeddings, labels = torch.randn(64, 32), torch.randint(8, (64,))
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    print(dtype, NTXentLoss()(embeddings.to(dtype), labels).item())
