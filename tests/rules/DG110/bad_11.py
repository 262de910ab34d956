import torch

image = (torch.rand(4, 4) * 65535).to(torch.uint16)
low, high = image.min(), image.max()  # expect: DG110 "`image.min()` was refused: \"min_all\" not implemented for 'UInt16'; `operand 0` = u16[4,4] on cpu ((torch.rand(4, 4) * 65535).to(torch.uint16) at program.py:3, in <module>: uint16)"
print(float(low) < float(high))
