import torch

torch.manual_seed(0)
points = torch.randn(256, 32)
answers = (points @ torch.randn(32) > 0).float()
weights, memory = torch.zeros(32), torch.zeros(32)
for _ in range(60):
    gradient = points.T @ (torch.sigmoid(points @ weights) - answers) / 256
    wanted = gradient + memory
    sent = wanted.half().float()
    memory = wanted - sent  # what the cast took is sent with the next gradient
    weights -= 0.3 * sent
print(torch.nn.functional.binary_cross_entropy_with_logits(points @ weights, answers).item())
