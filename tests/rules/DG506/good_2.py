import torch
from torch import nn

teacher, student = nn.Linear(8, 2).half(), nn.Linear(8, 2)
x = torch.ones(3, 8)
with torch.no_grad():
    target = teacher(x.half()).float()
nn.functional.mse_loss(student(x), target).backward()
