import torch
from vector_quantize_pytorch import SimVQ

torch.manual_seed(0)
quantizer, x = SimVQ(dim=32, codebook_size=256), torch.randn(1, 1000, 32).bfloat16()
right = quantizer(x.float())[1]
found = quantizer.bfloat16()(x)[1]
print((found != right).sum().item(), "of 1000 codes are others")
