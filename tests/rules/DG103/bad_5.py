import torch

batch = {"x": torch.ones(2, dtype=torch.float64), "y": torch.zeros(2)}
for key, value in batch.items():
    value.float()  # expect: DG103 "`value.float()` gives a new float32 tensor, and it is thrown away: `value` stays float64"
print(sum(value.sum().item() for value in batch.values()))
# fix: keep the result: `batch[key] = value.float()`; or delete the line
