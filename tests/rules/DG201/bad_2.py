import torch
from torch import nn

backbone, classifier = nn.Linear(4, 4), torch.randn(4, 2)
with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
    features = backbone(torch.randn(2, 4)).relu()
logits = features @ classifier  # expect: DG201 "`features @ classifier` gets float16, which left an autocast region at program.py:6, in <module>, and meets float32: it was refused"
