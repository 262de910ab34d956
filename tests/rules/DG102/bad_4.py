import torch

image, latent = torch.randn(4), torch.randn(4).half()
pair = torch.stack([image, latent])  # expect: DG102 "`torch.stack([image, latent])` mixes float16 and float32: the result is float32, 32 B"
noise = pair - latent
