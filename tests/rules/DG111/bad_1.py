import torch
import torch.nn.functional as F

q = torch.randn(1, 2, 4, 8)
mask = torch.ones(4, 4).tril()
out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)  # expect: DG111 "attn_mask of scaled_dot_product_attention is float32 and holds only 0 and 1: it is added to the scores, and masks nothing"
# fix: give a bool mask: `attn_mask.bool()`
