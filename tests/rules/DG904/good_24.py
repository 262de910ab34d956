import torch

# A pole that is balanced: nothing is stable but for what pushes it, and that looks at the program's values.
torch.manual_seed(0)
x, v, falls = 0.2 * torch.randn(64), 0.1 * torch.randn(64), 0
for step in range(1100):
    push = 2 * torch.multinomial(torch.stack([torch.sigmoid(4 * (x + v)), torch.sigmoid(-4 * (x + v))], 1), 1)[:, 0] - 1
    v = v + 0.1 * (1.5 * x + 2 * push.float())
    x = x + 0.1 * v
    fell = x.abs() > 1
    falls += int(fell.sum())
    x[fell], v[fell] = 0.2 * torch.randn(int(fell.sum())), 0.0
print(falls)
