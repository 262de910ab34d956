import torch
from torch import nn

layer = nn.Linear(2, 1).half()
optimizer = torch.optim.RMSprop(layer.parameters(), eps=1e-4)
saved = {"step": torch.tensor(9.0), "square_avg": torch.full((1, 2), 1e-9)}
optimizer.load_state_dict({"state": {0: saved}, "param_groups": optimizer.state_dict()["param_groups"]})  # expect: DG604 "`RMSprop.load_state_dict` casts `square_avg of parameter 0` from float32 to float16, the dtype of the parameters: 1e-09 is 0 now"
