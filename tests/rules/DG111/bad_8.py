"""A mask to be added, read as bool: True where it hides."""

import torch
import torch.nn.functional as F

padding = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
added = (1.0 - padding.float()) * torch.finfo(torch.float32).min
q = torch.randn(2, 2, 4, 8)
keep = added[:, None, None, :].bool()  # expect: DG111 "attn_mask of scaled_dot_product_attention is bool and True where the float32 mask is -3.4e+38: only what it hides takes part"
out = F.scaled_dot_product_attention(q, q, q, attn_mask=keep.expand(-1, -1, 4, -1))
causal = torch.ones(4, 4, dtype=torch.bool).tril()
both = (added != 0)[:, None, None, :] & causal  # so does this
out = F.scaled_dot_product_attention(q, q, q, both)
# fix: True is what takes part: write `added[:, None, None, :] == 0`, or give the float mask as it is
