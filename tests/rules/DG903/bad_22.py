import torch

generator = torch.Generator().manual_seed(0)
seen = torch.full((1001, 1000), 250.0, dtype=torch.bfloat16)  # a heat map: more values than are looked at
for _ in range(64):
    frame = torch.rand(1001, 1, generator=generator).expand(1001, 1000)
    seen += frame.bfloat16()  # expect: DG903 "`seen += frame.bfloat16()`: a total stands still: 256 where float32 has 290.2; it reaches a number that the program reads"
print(seen.float().mean().item())
# fix: keep the total in float32, whatever is added: `torch.full((1001, 1000), 250.0, dtype=torch.float32)`
