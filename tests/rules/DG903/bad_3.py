import torch

weight = torch.ones(8, dtype=torch.bfloat16, requires_grad=True)
x = torch.linspace(0.5, 1.5, 8).bfloat16()
optimizer = torch.optim.SGD([weight], lr=1e-3)
for micro in range(1024):
    (weight * x).sum().backward()  # expect: DG903 "`(weight * x).sum().backward()`, in backward: a total stands still: 512 where float32 has 1536; it reaches a gradient that a step uses"
optimizer.step()
