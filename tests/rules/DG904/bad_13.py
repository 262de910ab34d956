import torch

group = torch.arange(30).repeat_interleave(20)
score = (1 - torch.linspace(0, 1, 600).remainder(0.37)).half()
order = (group.half() * 1000 + score).argsort(stable=True)  # expect: DG904 "`(group.half() * 1000 + score).argsort(stable=True)`: 574 of 600 come out otherwise than in float32: 20 instead of 39; rounded in float16: group.half() * 1000 + score at program.py:5, in <module>"
print(order[:5].tolist())
