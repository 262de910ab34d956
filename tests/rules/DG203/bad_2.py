import torch
from torch import nn

embedding, vision = nn.Embedding(10, 2), nn.Linear(4, 2)
image_token = torch.tensor([True, False, True])
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    tokens = embedding(torch.tensor([9, 3, 9]))
    features = vision(torch.randn(2, 4))
    tokens.masked_scatter_(image_token[:, None], features)  # expect: DG203 "`tokens.masked_scatter_(image_token[:, None], features)` under autocast was refused: masked_scatter: expected self and source to have same dtypes but gotFloat and BFloat16"
