import torch

weight = torch.randn(512, 256)
hidden = torch.ones(2, 512).half()
for _ in range(20):
    scores = hidden @ weight.half()  # expect: DG104 "the same float32 tensor of 512.0 KiB was cast to float16 20 times, 5.0 MiB in all, and it did not change"
