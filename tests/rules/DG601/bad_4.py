import torch
from torch import nn

torch.manual_seed(0)
checkpoint = {name: tensor.bfloat16() for name, tensor in nn.Linear(8, 8).state_dict().items()}
checkpoint["weight"][:, :4] *= 1e-7
model = nn.Linear(8, 8).half()
model.load_state_dict(checkpoint)  # expect: DG601 warning "`load_state_dict` converts 2 of 2 entries of Linear from bfloat16 in the checkpoint to float16: `weight`, `bias`; 42 % of the values of `weight` become 0"
# fix: load into a bfloat16 model and convert it then, or load with `assign=True`
