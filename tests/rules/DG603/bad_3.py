import torch
from torch import nn

model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
model[1].register_buffer("scale", torch.ones(2, dtype=torch.int8))
checkpoint = {**model.state_dict(), "1.scale": torch.tensor([0.5, 0.25])}
model.load_state_dict(checkpoint, strict=False)  # expect: DG603 "`load_state_dict` writes float32 into int8: the fractions of `1.scale` of Sequential are lost (0.5, ...)"
