import torch

torch.manual_seed(0)
inputs, weight = torch.randn(64, 20).half() * 8, torch.zeros(20, 1, requires_grad=True, dtype=torch.float16)
loss = ((inputs @ weight).float() - 60).square().mean()
(gradient,) = torch.autograd.grad(loss, weight)
norm = (gradient**2).sum().sqrt()  # expect: DG901 "`gradient**2`: 2 of 20 values become infinite or NaN in float16, where float32 has 9.71e+04; it reaches a number that the program reads"
gradient *= 1 / (norm + 1e-6)
change = 0.1 * gradient  # is zero since the norm is infinite
print(change.abs().max().item())
