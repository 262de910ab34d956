import torch
import torch.nn.functional as F

q = torch.randn(1, 2, 4, 8)
mask = torch.ones(4, 4).tril().bool()
out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
