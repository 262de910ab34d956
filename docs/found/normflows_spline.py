import torch
from normflows.utils.splines import unconstrained_rational_quadratic_spline as spline

torch.manual_seed(0)
x, widths, heights, slopes = torch.full((4,), 3.0), torch.randn(4, 8), torch.randn(4, 8), torch.randn(4, 7)
for dtype in (torch.float32, torch.bfloat16):
    print(dtype, spline(*(one.to(dtype) for one in (x, widths, heights, slopes)), tails="linear", tail_bound=3.0)[0])
