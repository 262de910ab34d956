import torch
import torch.nn.functional as F


def flash_attention(q, k, v):
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    return F.scaled_dot_product_attention(q, k, v)


x = torch.randn(1, 1, 3, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    q = F.normalize(x, dim=-1)
    y = flash_attention(q, q, x)  # expect: DG205 "`flash_attention(q, q, x)` under autocast got `q` in float32: FlashAttention only support fp16 and bf16 data type"
# fix: cast what it takes yourself: `.to(torch.get_autocast_dtype('cpu'))`, or annotate it and use `dtypeguard.enforce`
