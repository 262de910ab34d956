import torch

start = torch.tensor([40.1, 40.2, 40.3, 40.4])
step = torch.tensor([1e-4, 2e-4, 3e-4, 4e-4])
moved = start + step
step = moved - start  # what was added is near enough, and the quotient takes it as it is
print(((moved.square() - start.square()) / step).tolist())
x, target = torch.full((4,), 5.0), torch.tensor([1.1, 2.2, 3.3, 4.4])
for _ in range(200):
    new = x - 0.3 * (x - target)
    moved, x = (new - x).norm().item(), new
    if moved < 1e-6:  # it is small, and has few digits
        break
print(x.tolist(), moved)
total = torch.zeros(3, dtype=torch.bfloat16) + 1
step = torch.full((3,), 0.003, dtype=torch.bfloat16)
new = total + step
rest = (new - total) - step  # of a compensated sum, of which this is one round
print((new + step - rest).tolist())
weight, rest = torch.full((64,), 2.0, dtype=torch.bfloat16), torch.zeros(64, dtype=torch.bfloat16)
for _ in range(200):
    step = -1e-4 * torch.ones(64, dtype=torch.bfloat16) - rest
    new = weight + step
    rest = (new - weight) - step
    weight.copy_(new)
print(weight.mean().item())
