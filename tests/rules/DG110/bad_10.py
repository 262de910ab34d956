import torch

steps = torch.arange(3)
values = torch.randn(3, 8).half()
print(torch.quantile(values, 0.9, dim=1)[steps])  # expect: DG110 "`torch.quantile(values, 0.9, dim=1)` was refused: quantile() input tensor must be either float or double dtype; `values` = f16[3,8] on cpu (torch.randn(3, 8).half() at program.py:4, in <module>: float16)"
