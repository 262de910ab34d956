import torch
from torch import nn


def half(value):
    if isinstance(value, dict):
        return {key: half(one) for key, one in value.items()}
    return value.half() if isinstance(value, torch.Tensor) and value.dim() else value


def make():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    return model, torch.optim.Adam(model.parameters())


model, optimizer = make()
for _ in range(3):
    optimizer.zero_grad()
    (1e-4 * model(torch.ones(8, 4)).square().mean()).backward()
    optimizer.step()
checkpoint = half(optimizer.state_dict())
model, optimizer = make()
optimizer.load_state_dict(checkpoint)  # expect: DG604 "`Adam.load_state_dict` takes `exp_avg_sq of parameter 0`, `exp_avg_sq of parameter 1` in float16, as saved: 100 % of it is 0 where gradients are not, so that steps explode"
# fix: save it as the optimizer has it, in float32: leave the optimizer out where a state dict is cast
