import torch

points = torch.linspace(0.1, 40.0, 64)
cells = (points / 0.5).long()
positive = (torch.sigmoid(points - 20) > 0.5).float().long()
picture = (torch.sigmoid(points - 20) * 255).to(torch.uint8)
print(len(cells.unique()), positive.sum().item(), picture.max().item())
