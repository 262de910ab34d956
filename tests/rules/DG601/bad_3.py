import torch
from torch import nn

checkpoint = {"weight": torch.full((2, 2), 1e6), "bias": torch.zeros(2)}
model = nn.Linear(2, 2).half()
model.load_state_dict(checkpoint)  # expect: DG601 error "`load_state_dict` converts 2 of 2 entries of Linear from float32 in the checkpoint to float16: `weight`, `bias`; `weight` overflow"
