import torch
from torch import nn

torch.manual_seed(0)
policy, states = nn.Linear(8, 64), torch.randn(32, 8)
with torch.autocast("cpu", dtype=torch.bfloat16):
    logits = policy(states)
old = logits.float().log_softmax(-1)[:, :4]
new = logits.log_softmax(-1)[:, :4]  # outside of the region, in bfloat16
ratio = (new - old).exp()  # expect: DG902 "`new - old`: an error of 0.33 % comes in, more than 1000 % goes out: 0.02073 where float64 has -1.139e-09; it reaches a number that the program reads; rounded in bfloat16: logits.log_softmax(-1) at program.py:9, in <module>"
print((ratio.log() ** 2).sum().item())
# fix: compute `logits.log_softmax(-1)` in float32, by a cast of what goes in: its result has lost the digits
