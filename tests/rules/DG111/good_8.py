"""A mask to be added, read as bool the right way round."""

import torch
import torch.nn.functional as F
from torch import nn

padding = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
added = (1.0 - padding.float()) * torch.finfo(torch.float32).min
q = torch.randn(2, 2, 4, 8)
mask = added[:, None, None, :]
out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask == 0)
out = F.scaled_dot_product_attention(q, q, q, attn_mask=~mask.bool())
out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask.bool().logical_not_())
out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask.bool() == False)  # noqa: E712
out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
x = torch.randn(2, 4, 16)
attention = nn.MultiheadAttention(16, 2, batch_first=True)
out, _ = attention(x, x, x, key_padding_mask=added.bool())
out, _ = attention(x, x, x, key_padding_mask=added.bool(), need_weights=False)
layer = nn.TransformerEncoderLayer(16, 2, batch_first=True)
out = layer(x, src_key_padding_mask=added != 0)
layer.eval()
with torch.inference_mode():
    out = layer(x, src_key_padding_mask=added != 0)
