import torch
from torch import nn

teacher, student = nn.Linear(4, 4), nn.Linear(4, 4)
with torch.autocast("cpu", dtype=torch.bfloat16):
    before = teacher(torch.ones(2, 4))
    with torch.no_grad():
        for average, weight in zip(teacher.parameters(), student.parameters()):
            average.lerp_(weight, 0.5)
    after = teacher(torch.ones(2, 4))  # expect: DG208 "`weight` of Linear has changed since autocast made its bfloat16 copy, and the copy is used"
