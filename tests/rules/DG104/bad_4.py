import torch

weight = torch.ones(256, 256, dtype=torch.int8)
x = torch.ones(2, 256).bfloat16()
for _ in range(16):
    y = x @ weight.to(x.dtype)  # expect: DG104 info "the same int8 tensor of 64.0 KiB was cast to bfloat16 16 times, 2.0 MiB in all, and it did not change"
