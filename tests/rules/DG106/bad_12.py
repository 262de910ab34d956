import torch

pictures = torch.zeros(4, 3, 3, dtype=torch.uint8)
pictures[0] = torch.full((3, 3), 0.9)  # expect: DG106 "`pictures[0] = torch.full((3, 3), 0.9)` writes float32 values into uint8: 9 of 9 lose their fraction"
# fix: allocate the target with a floating dtype, or, where whole numbers are meant, `.round().to(torch.uint8)`
