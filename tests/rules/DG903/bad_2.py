import torch

reward = torch.ones(4)
trace = reward.bfloat16()
for step in range(300):
    reward += 0.01
    trace.mul_(0.999).add_(reward, alpha=0.002)  # expect: DG903 "`trace.mul_(0.999).add_(reward, alpha=0.002)`: a total stands still: 2.156 where float32 has 2.079; it reaches values that the program reads"
print(trace.tolist())
# fix: keep the total in float32, whatever is added: `reward.to(torch.float32, copy=True)`
