import torch

corner = torch.tensor([[10.0, 20.0, 50.0, 60.0], [11.0, 20.5, 51.0, 60.5]]).half()
group = torch.arange(2, 18, dtype=torch.float16)
boxes = corner[:, None] + 3500 * group[None, :, None]
low, high = torch.maximum(boxes[0, :, :2], boxes[1, :, :2]), torch.minimum(boxes[0, :, 2:], boxes[1, :, 2:])
size = (high - low).clamp(min=0)  # expect: DG902 "`high - low`: an error of 0.058 % comes in, 47 % goes out: 64 where float32 has 39; it reaches a comparison; rounded in float16: 3500 * group[None, :, None] at program.py:5, in <module>"
overlap = size.prod(1) / (1600 + 1600 - size.prod(1))
print((overlap > 0.9).nonzero())
