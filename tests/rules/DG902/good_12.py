import torch

torch.manual_seed(0)
total, lost = torch.tensor(1e4), torch.tensor(0.0)
for value in torch.rand(64):  # Kahan's sum: the difference of two rounds is what was added
    value = value - lost
    after = total + value
    lost = (after - total) - value
    total = after
step, x = 1.0, torch.full((8,), 5.0)
while step > 1e-6:  # what is added gets small, and so does the difference
    before, x = x, x + step * torch.ones(8)
    step = 0.1 * (x - before).norm().item()
print(total.item(), x.sum().item())
