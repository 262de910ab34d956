import torch

up, down = torch.randn(2, 64, 63, 1000, generator=torch.Generator().manual_seed(0)).abs()
total = torch.zeros((), dtype=torch.bfloat16)
for one, other in zip(up, down, strict=True):
    nll = 548 + (one.exp() - other.exp()).mean()
    total += nll  # expect: DG902 "`total += nll`: an error of 0.39 % comes in, 2.2 % goes out: 34304 where float32 has 3.507e+04; it reaches a number that the program reads"
print(f"perplexity {(total.float() / 4032).exp().item():.1f}")
# fix: keep it in float32: what each round of a loop rounds away builds up
