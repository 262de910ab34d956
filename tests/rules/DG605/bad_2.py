import torch
from torch import nn


def load(model, state):
    for name, weight in state.items():
        if weight.dtype is torch.float8_e4m3fn:
            state[name] = weight.to(torch.bfloat16)
    model.load_state_dict(state, strict=False)  # expect: DG605 "`load_state_dict` loads `0.weight`, `1.weight` of Sequential from float8_e4m3fn without `0.weight_scale_inv`, `1.weight_scale_inv`"


model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).bfloat16()
state = {}
for name, weight in model.state_dict().items():
    if name.endswith("weight"):
        state[f"{name}_scale_inv"] = scale = weight.float().abs().max() / 448
        state[name] = (weight.float() / scale).to(torch.float8_e4m3fn)
    else:
        state[name] = weight
load(model, state)
# fix: multiply by the scale first, `weight.float() * scale`; or load the file with the library that wrote it
