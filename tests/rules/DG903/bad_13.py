import torch

done = torch.zeros((), dtype=torch.bfloat16)
for _ in range(600):
    done += 1  # expect: DG903 "`done += 1`: a total stands still: 256 where float32 has 600; it reaches a comparison"
rate = 0.1 if done == 256 else 0.01
