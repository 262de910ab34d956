import torch
from torch import nn


def keep(optimizer):
    for parameter, state in zip(layer.parameters(), checkpoint["state"].values()):
        optimizer.state[parameter]["momentum_buffer"] = state["momentum_buffer"]


layer = nn.Linear(2, 1).bfloat16()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
groups = optimizer.state_dict()["param_groups"]
checkpoint = {"state": {0: {"momentum_buffer": torch.full((1, 2), 0.1234567)}}, "param_groups": groups}
optimizer.register_load_state_dict_post_hook(keep)
optimizer.load_state_dict(checkpoint)
