import torch
from torch import nn

layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
x = torch.randn(2, 4, 8)
out = layer(x, src_mask=torch.ones(4, 4).triu(1))  # expect: DG111 "attn_mask of multi_head_attention_forward is float32 and holds only 0 and 1: it is added to the scores, and masks nothing"
