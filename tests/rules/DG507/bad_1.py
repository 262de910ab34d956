import torch
from torch import nn


def validate(model, x):
    model.half()  # expect: DG507 "`weight`, `bias` of Linear: rounded to float16 again, after a conversion back to float32 and an update, whose digits are lost"
    with torch.no_grad():
        out = model(x.half()).float()
    model.float()
    return out.square().mean()


model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.ones(4, 8)
for epoch in range(3):
    model(x).square().mean().backward()
    optimizer.step()
    print(validate(model, x).item())
# fix: convert a copy: `copy.deepcopy(model).to(torch.float16)`; or run the model as it is under `torch.autocast`
