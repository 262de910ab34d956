import torch

batch = {"pixels": torch.ones(2, 3), "labels": torch.zeros(2)}
for name in batch:
    batch[name].to(torch.bfloat16)  # expect: DG103 "`batch[name].to(torch.bfloat16)` gives a new bfloat16 tensor, and it is thrown away: `batch[name]` stays float32"
