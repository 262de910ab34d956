import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(8, 24).bfloat16()
mask = torch.zeros(3, 3, dtype=torch.float16)
q, k, v = model(torch.randn(1, 3, 8, dtype=torch.bfloat16)).chunk(3, -1)
F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # expect: DG110 "`F.scaled_dot_product_attention(q, k, v, attn_mask=mask)` was refused: Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: c10::Half and  query.dtype: c10::BFloat16 instead.; `mask` = f16[3,3] on cpu (torch.zeros(3, 3, dtype=torch.float16) at program.py:6, in <module>: float16)"
