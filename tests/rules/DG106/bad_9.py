import torch


def to_torch_as(x, y):
    return torch.as_tensor(x).to(dtype=y.dtype)  # expect: DG106 "`torch.as_tensor(x).to(dtype=y.dtype)` casts float32 values to int64: 62 of 64 lie between -1 and 1, and become 0"


returns, actions = torch.linspace(-1, 1, 64), torch.randint(0, 4, (64,))
print((torch.zeros(64) * to_torch_as(returns, actions)).sum().item())
