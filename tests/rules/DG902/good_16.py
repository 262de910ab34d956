import torch
import torch.nn.functional as F

image = torch.full((1, 1, 16, 16), 0.3) + 0.1
small = F.interpolate(image, size=(11, 11), mode="bilinear")
sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
edges = F.conv2d(small / small.mean(), sobel[None, None] * 0.3)
print(edges.abs().max().item())
