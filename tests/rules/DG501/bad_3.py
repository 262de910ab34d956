import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
model = model.to(device="cpu", dtype=torch.float16)  # expect: DG501 "buffers `1.running_mean`, `1.running_var` of Sequential: converted from float32 to float16"
out = model(torch.ones(3, 4).half())
# fix: keep the module in float32: `kept, model[1] = model[1], None` before the conversion, and `model[1] = kept.to('cpu')` after it
