import torch


def table(length, dtype):
    positions = torch.arange(length, dtype=dtype)  # expect: DG905 warning "`torch.arange(length, dtype=dtype)`: 64 of 384 whole numbers become others in bfloat16, 384 different ones become 321: 256 where float32 has 257; it reaches groups of equal values"
    return positions / length


print(table(384, torch.bfloat16).unique().numel())
