import torch
from torch import nn

signal, lag = torch.sin(torch.arange(32.0)), nn.Parameter(torch.full((4,), 3.0))
gain = nn.Parameter(torch.ones(4, 1))
optimizer = torch.optim.SGD([lag, gain], lr=0.1)
steps = torch.arange(32).expand(4, 32)
for _ in range(3):
    places = torch.empty_like(steps)
    for row in range(4):
        places[row] = steps[row] - lag[row]  # expect: DG119 "float32 values of which a gradient is wanted become int64: 1 parameter gets no gradient in 3 steps"
    optimizer.zero_grad()
    (gain * signal[places.clamp(0, 31)]).square().mean().backward()
    optimizer.step()
# fix: create the target with `dtype=torch.float32`; or take the parameters out of the optimizer
