import torch

causal = torch.ones(4, 4, dtype=torch.bool).tril()
keep = (torch.rand(4, 4) > 0.2).float()
print((keep & causal).sum())  # expect: DG110 "`keep & causal` was refused: \"bitwise_and_cpu\" not implemented for 'Float'; `operand 0` = f32[4,4] on cpu ((torch.rand(4, 4) > 0.2).float() at program.py:4, in <module>: float32)"
