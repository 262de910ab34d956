import torch
from torch import nn


def quantized(state):
    codes = {}
    for name, weight in state.items():
        codes[f"{name}_scale"] = scale = weight.abs().max() / 448
        codes[name] = (weight / scale).to(torch.float8_e4m3fn)
    return codes


model = nn.Linear(8, 8, bias=False).bfloat16()
checkpoint = quantized(nn.Linear(8, 8, bias=False).state_dict())
model.load_state_dict(checkpoint, strict=False)  # expect: DG605 "`load_state_dict` loads `weight` of Linear from float8_e4m3fn without `weight_scale`"
# fix: multiply by the scale first, `weight.float() * scale`; or load the file with the library that wrote it
