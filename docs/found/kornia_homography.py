import torch
from kornia.geometry import find_homography_dlt

torch.manual_seed(0)
points = torch.randint(480, (1, 20, 2))
for dtype in (torch.float32, torch.float16):
    print(dtype, find_homography_dlt(points.to(dtype), (points + 16).to(dtype))[0, 0].tolist())
