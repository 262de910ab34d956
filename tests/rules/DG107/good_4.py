import torch

hits, pixels = torch.zeros(()), 0
for right in (torch.arange(4096) % 8 > 0).repeat(12, 1):
    hits += right.sum()
    pixels += right.numel()
image = torch.empty(4, 4, dtype=torch.float16)
image.copy_(torch.arange(16).view(4, 4))
image[0] = torch.tensor([255, 0, 1, 2], dtype=torch.uint8)
image *= torch.tensor(200)
image.div_(7).add_(torch.tensor(3))
print(f"{hits.item() / pixels:.3f}", image.max().item())
