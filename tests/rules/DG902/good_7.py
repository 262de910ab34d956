import torch

x = torch.randn(4, 8, requires_grad=True)
torch.softmax(x, -1).sum().backward()
mask = torch.log(torch.tril(torch.ones(3, 3)))
print(x.grad.shape, torch.equal(mask, mask.T))
