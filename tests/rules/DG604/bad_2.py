import torch
from torch import nn


class Momentum(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.1):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                mean = state.get("mean", torch.zeros_like(parameter, dtype=torch.float32))
                state["mean"] = mean.float() * 0.9 + parameter.grad.float() * 0.1
                parameter -= (group["lr"] * state["mean"]).to(parameter.dtype)


layer = nn.Linear(2, 1, dtype=torch.bfloat16)
optimizer = Momentum(layer.parameters())
for _ in range(4):
    layer(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()

resumed = Momentum(layer.parameters())
resumed.load_state_dict(optimizer.state_dict())  # expect: DG604 "`Momentum.load_state_dict` casts `mean of parameter 0`, `mean of parameter 1` from float32 to bfloat16, the dtype of the parameters: 0.9049 is 0.90625 now"
layer(torch.ones(1, 2, dtype=torch.bfloat16)).sum().backward()
resumed.step()
