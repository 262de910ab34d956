import torch
import torch.nn.functional as F

torch.manual_seed(0)
x, places = torch.randn(1, 2, 512, 8, dtype=torch.bfloat16), torch.arange(512)
flat = torch.zeros_like(x)
slopes = torch.tensor([1.0, 0.5], dtype=torch.bfloat16)[:, None, None]
rounded = places.to(slopes.dtype)
distances = (rounded[:, None] - rounded[None, :]).abs()
bias = (-distances * slopes).masked_fill(places[None, :] > places[:, None], torch.finfo(slopes.dtype).min)
attended = F.scaled_dot_product_attention(flat, flat, x, attn_mask=bias)  # expect: DG902 "`F.scaled_dot_product_attention(...)`: an error of 0.38 % comes in, <...> it reaches values that the program reads; rounded in bfloat16: places.to(slopes.dtype) at program.py:8, in <module>"
last = attended[0, 0, -1].tolist()
# fix: stay in float32: `places.to(slopes.dtype)` rounds; `-distances * slopes` at line 10 too
