import torch

waiting = -(1 - torch.rand(1000, dtype=torch.bfloat16)).log()  # expect: DG116 "`(1 - torch.rand(1000, dtype=torch.bfloat16)).log()` takes uniform numbers that were drawn in bfloat16 at program.py:3, in <module>: about one in some hundred of them is 0, in float32 one in 16 million"
