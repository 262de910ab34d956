import torch
import torch.nn.functional as F

q = torch.randn(1, 2, 4, 8)
hidden = torch.ones(4, 4).triu(1).bool()
mask = torch.zeros(4, 4).masked_fill(hidden, -torch.inf)
out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
