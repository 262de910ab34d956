import torch

torch.manual_seed(0)
keys = torch.randn(4, 8).bfloat16()
bits = keys.view(torch.int16)
print(torch.equal(bits.clone().view(torch.bfloat16), keys), keys.view(torch.uint8).shape)
