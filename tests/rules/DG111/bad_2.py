import torch
from torch import nn

attention = nn.MultiheadAttention(8, 2, batch_first=True)
x = torch.randn(2, 3, 8)
padding = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
out, weights = attention(x, x, x, key_padding_mask=padding)  # expect: DG111 "key_padding_mask of multi_head_attention_forward is float32 and holds only 0 and 1: it is added to the scores, and masks nothing"
