import torch

pixels = torch.tensor([100, 200], dtype=torch.uint8)
pixels.float()  # expect: DG103 "`pixels.float()` gives a new float32 tensor, and it is thrown away: `pixels` stays uint8"
print((pixels * 2).tolist())
