import torch
import torch.nn.functional as F


def flash_attention(q, k, v):
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    return F.scaled_dot_product_attention(q, k, v)


def attention(q, k, v):
    try:
        return flash_attention(q, k, v)
    except RuntimeError:
        return F.scaled_dot_product_attention(q, k, v)


x = torch.randn(1, 1, 3, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = attention(x, x, x)
