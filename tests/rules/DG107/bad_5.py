import torch
from torch import nn

model = nn.Linear(8, 8)
saved = {name: tensor + 1e-3 for name, tensor in model.state_dict().items()}
template = {name: torch.zeros(tensor.shape, dtype=torch.bfloat16) for name, tensor in saved.items()}
for name, tensor in template.items():
    tensor.copy_(saved[name])  # expect: DG107 warning "`tensor.copy_(saved[name])` writes float32 into a bfloat16 tensor, rounded, and Linear loads it in float32"
model.load_state_dict(template)
