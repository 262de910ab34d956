import torch

slopes = torch.tensor([0.5, 0.25, 0.125, 0.0])
scores, gate = torch.randn(2, 4).half(), torch.rand(2, 1).half()
scores = scores + slopes  # expect: DG102 "`scores + slopes` mixes float16 and float32: the result is float32, 32 B"
scores = scores * gate
