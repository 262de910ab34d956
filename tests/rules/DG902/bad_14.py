import torch

torch.manual_seed(0)
correct, seen = torch.zeros((), dtype=torch.float16), 0
for _ in range(350):
    hits = torch.rand(33) < 2
    correct += hits.sum()  # expect: DG902 "`correct += hits.sum()`: an error of 0.049 % comes in, 2.4 % goes out: 10304 where float32 has 10560; it reaches a number that the program reads"
    seen += hits.numel()
accuracy = (correct / seen).item()
