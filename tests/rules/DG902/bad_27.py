import torch


class Perplexity:
    def __init__(self):
        self.nll = torch.zeros((), dtype=torch.bfloat16)
        self.tokens = torch.zeros((), dtype=torch.bfloat16)

    def update(self, loss, n):
        self.nll += loss * n
        self.tokens += n  # expect: DG902 "`self.tokens += n`: an error of 0.39 % comes in, 2.8 % goes out: 4080 where float32 has 3968; it reaches a number that the program reads"

    def compute(self):
        return (self.nll / self.tokens).exp().item()


metric = Perplexity()
for _ in range(200):
    metric.update(torch.tensor(0.02), 62)
print(f"{int(metric.tokens)} tokens, perplexity {metric.compute():.3f}")
