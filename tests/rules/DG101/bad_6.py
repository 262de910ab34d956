import numpy as np
import torch
from torch import nn

counts = np.array([5.0, 1.0, 2.0])
criterion = nn.CrossEntropyLoss(weight=torch.from_numpy(counts.sum() / counts))
logits, labels = torch.ones(4, 3), torch.tensor([0, 1, 2, 1])
loss = criterion(logits, labels)  # expect: DG101 error "`criterion(logits, labels)` was refused: it mixes float64 and float32; `CrossEntropyLoss.weight` = f64[3] on cpu (torch.from_numpy(counts.sum() / counts) at program.py:6, in <module>: float64)"
# fix: convert where the float64 is born: `torch.from_numpy(counts.sum() / counts).to(torch.float32)`
