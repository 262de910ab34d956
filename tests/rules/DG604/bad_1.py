import torch
from torch import nn

model = nn.Linear(2, 1)
nn.init.ones_(model.weight)
optimizer = torch.optim.Adam(model.parameters())
model(torch.tensor([[0.1, 0.2]])).sum().backward()
optimizer.step()
checkpoint = optimizer.state_dict()

model.bfloat16()
optimizer = torch.optim.Adam(model.parameters())
optimizer.load_state_dict(checkpoint)  # expect: DG604 "`Adam.load_state_dict` casts `exp_avg of parameter 0`, `exp_avg_sq of parameter 0`, `exp_avg of parameter 1` and 1 more from float32 to bfloat16, the dtype of the parameters: 0.01 is 0.01000977 now"
# fix: resume with float32 parameters; where the optimizer itself keeps its state in float32, put the saved tensors back after loading: `optimizer.state[parameter][key] = saved`
