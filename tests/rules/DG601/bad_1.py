import torch
from torch import nn

checkpoint = nn.Linear(4, 4).bfloat16().state_dict()

model = nn.Linear(4, 4)
model.load_state_dict(checkpoint)  # expect: DG601 "`load_state_dict` converts 2 of 2 entries of Linear from bfloat16 in the checkpoint to float32: `weight`, `bias`; 40 B more than the file holds"
# fix: leave it to train in float32; to run in bfloat16, `.to(torch.bfloat16)` before loading
