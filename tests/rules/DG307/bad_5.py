import torch

import dtypeguard

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch(net, optimizer, scaler)
with torch.autocast("cpu", torch.float16):
    loss = net(torch.ones(2, 3)).float().square().mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
scaler.update()  # expect: DG307 "`update` is called, and no optimizer has stepped with the scaler since it was called last, so the scaler has no gradients to check"
