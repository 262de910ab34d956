import torch

x = torch.randn(1000, 6, generator=torch.Generator().manual_seed(5)) + 0.5
w = torch.tensor([1.0, -1.0, 0.5, 2.0, -0.5, 0.25])
total = torch.zeros(6, dtype=torch.bfloat16)
for batch in x.split(4):
    total += -2 * ((batch @ w)[:, None] * batch).mean(0)  # expect: DG902 "`total += -2 * ((batch @ w)[:, None] * batch).mean(0)`: an error of 0.39 % comes in, 3.8 % goes out: -1144 where float32 has -1122; it reaches values that the program reads"
print([round(v, 1) for v in total.tolist()])
# fix: keep it in float32: what each round of a loop rounds away builds up
