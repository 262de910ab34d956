import copy

import torch
from torch import nn

import dtypeguard

student = nn.Linear(8, 8, bias=False)
nn.init.ones_(student.weight)
teacher = copy.deepcopy(student).half().requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
watched = dtypeguard.amp.watch(student, optimizer, averaged=teacher)
for _ in range(40):
    optimizer.zero_grad()
    student(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()  # expect: by a watch
    with torch.no_grad():
        for mine, theirs in zip(teacher.parameters(), student.parameters()):
            mine.lerp_(theirs.half(), 1e-4)  # expect: DG407 "the average of `Linear.weight` is float16 and does not move: 100 % of the elements that differ from the model stayed as they were in 16 steps"
