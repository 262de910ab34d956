import torch
import torch.nn.functional as F

target = torch.tensor([0, 1, 1, 0])
x = torch.randn(4, 3, 8) * (1.0 + target[:, None, None])
out = F.scaled_dot_product_attention(x, x, x)
