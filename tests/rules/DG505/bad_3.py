import torch
from torch import nn

logits, target = torch.zeros(2, 3, device="meta"), torch.zeros(2, 3, device="meta")
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.ones(3))
loss = criterion(logits, target)  # expect: DG505 "`criterion(logits, target)` was refused: Tensor on device meta is not on the expected device cpu!; `BCEWithLogitsLoss.pos_weight` = f32[3] on cpu (torch.ones(3) at program.py:5, in <module>: float32)"
