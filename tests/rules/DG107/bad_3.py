import torch

weight = torch.ones(4).bfloat16()
update = torch.full((4,), 0.1)
for _ in range(4):
    weight.add_(update)  # expect: DG107 "`weight.add_(update)` writes float32 into a bfloat16 tensor, rounded"
