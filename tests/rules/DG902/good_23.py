import torch

torch.manual_seed(0)


def pieces(x):
    """Three bfloat16 numbers for each float32 one, which add up to it."""
    high = x.to(torch.bfloat16)
    middle = (x - high.float()).to(torch.bfloat16)
    low = (x - high.float() - middle.float()).to(torch.bfloat16)
    return high, middle, low


x = torch.randn(64, 32)
print((sum(piece.double() for piece in pieces(x)) - x).abs().max().item())
