import torch


def covariance(x):
    mean = x.sum(0) / len(x)
    return (x.T @ x - len(x) * torch.outer(mean, mean)) / (len(x) - 1)


torch.manual_seed(0)
real, fake = (covariance(800 + 0.1 * torch.randn(4000, 6)) for _ in range(2))
both = real.double() @ fake.double()  # expect: DG902 "`real.double() @ fake.double()`: an error of <...> it reaches a number that the program reads; rounded in float32: <...> at program.py:6, in covariance"
print((real.trace() + fake.trace() - 2 * torch.linalg.eigvals(both).sqrt().real.sum()).item())
