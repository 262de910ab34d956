import torch

x = torch.tensor([[4e-6, -1.5e-6, 0.75e-6]]).half()
scale = (x.float().abs().amax(-1, keepdim=True) / 127).half()
quantized = (x / scale).round().clamp(-127, 127).to(torch.int8)  # expect: DG904 "`(x / scale).round().clamp(-127, 127).to(torch.int8)`: 3 of 3 come out otherwise than in float32: 67 instead of 127; the digits are lost at (x.float().abs().amax(-1, keepdim=True) / 127).half() at program.py:4, in <module>"
print(quantized.tolist())
