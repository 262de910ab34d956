import torch

noise = torch.rand(64, dtype=torch.float16).clamp(min=1e-4)
gumbel = -noise.log().neg().log()  # expect: DG116 "`noise.log()` takes uniform numbers that were drawn in float16 at program.py:3, in <module>: about one in some thousand of them is 0, in float32 one in 16 million"
