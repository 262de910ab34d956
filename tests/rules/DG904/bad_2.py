import torch

lengths = torch.tensor([0.8745, 0.8777]).bfloat16()
frames = (lengths * 2500).long()  # expect: DG904 "`(lengths * 2500).long()`: 2 of 2 come out otherwise than in float32: 2192 instead of 2186; rounded in bfloat16: torch.tensor([0.8745, 0.8777]).bfloat16() at program.py:3, in <module>"
print(frames.tolist())
