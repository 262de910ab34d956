import torch


def merge(masks):
    merged = torch.zeros(180, dtype=torch.uint8)
    for number, mask in enumerate(masks, 1):
        merged = merged + mask * number  # expect: DG109 "`merged + mask * number`: 8 of 180 results are outside of 0 to 255 and wrap around"
        merged = merged.clamp(max=number)
    return merged


highest = merge(torch.ones(180, 180, dtype=torch.uint8).tril()).max()
# fix: take a wider dtype: `.int()` or `.float()` first
