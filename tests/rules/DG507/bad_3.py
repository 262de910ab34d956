import torch
from torch import nn

model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
x, y = torch.ones(4, 8), torch.zeros(4, 1)
for step in range(3):
    model.to(torch.bfloat16)  # expect: DG507 "`weight`, `bias` of Linear: rounded to bfloat16 again, after a conversion back to float32 and an update, whose digits are lost"
    loss = nn.functional.mse_loss(model(x.bfloat16()).float(), y)
    optimizer.zero_grad()
    loss.backward()
    model.to(torch.float32)
    for parameter in model.parameters():
        parameter.grad = parameter.grad.float()
    optimizer.step()
    print(loss.item())
# fix: convert a copy: `copy.deepcopy(model).to(torch.bfloat16)`; or run the model as it is under `torch.autocast`
