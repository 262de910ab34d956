import torch

weight = torch.ones(8)
average = weight.bfloat16()
rate = torch.full((8,), 1e-3, dtype=torch.bfloat16)
for step in range(200):
    weight += 0.01
    half = weight.bfloat16()
    torch._foreach_lerp_([average], [half], [rate])  # expect: DG903 "`torch._foreach_lerp_([average], [half], [rate])`: it stands still since write 1, though it is computed anew each time: 1 where float32 has 1.188; it reaches values that the program reads"
print(average.tolist())
# fix: keep it in float32
