import torch

torch.manual_seed(0)
correct, seen = torch.zeros((), dtype=torch.float16), 0
for _ in range(60):  # float16 has all whole numbers up to 2048
    hits = torch.rand(33) < 0.99
    correct += hits.sum()
    seen += hits.numel()
accuracy = (correct / seen).item()
