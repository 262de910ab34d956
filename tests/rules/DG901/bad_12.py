"""Both products are infinite, and their quotient is zero: the line of each is named."""

import torch


def area(boxes):
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])  # expect: DG901 "`(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])`: 80 of 80 values become infinite or NaN in float16, where float32 has 230400; it reaches a comparison"


corners = torch.rand(40, 2, generator=torch.Generator().manual_seed(0)) * 20
boxes = torch.cat([corners, corners + 480], dim=1).half()
low = torch.max(boxes[:, None, :2], boxes[:, :2])
high = torch.min(boxes[:, None, 2:], boxes[:, 2:])
sides = high - low
common = sides[..., 0] * sides[..., 1] * 0.5
overlap = common / (area(boxes)[:, None] + area(boxes) - common)
print(int((overlap > 0.3).sum()))
