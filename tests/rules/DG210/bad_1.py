import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x, labels = torch.randn(32, 8), torch.randint(0, 64, (32,))
for step in range(3):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x)
    loss = nn.functional.cross_entropy(logits, labels)  # expect: DG210 "`nn.functional.cross_entropy(logits, labels)` gets bfloat16, which left an autocast region at program.py:11, in <module>: the loss is bfloat16, in the region float32"
    loss.backward()
    optimizer.step()
# fix: compute the loss inside the region, or from `.float()` of what leaves it
