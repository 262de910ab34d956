import torch
from torch import nn

import dtypeguard

generator, critic = nn.Linear(3, 3), nn.Linear(3, 1)
first = torch.optim.Adam(generator.parameters())
second = torch.optim.Adam(critic.parameters())
scaler = torch.amp.GradScaler("cpu")
watched = dtypeguard.amp.watch([generator, critic], [first, second], scaler)
scaler.scale(critic(generator(torch.ones(4, 3))).square().mean()).backward()
scaler.unscale_(first)
nn.utils.clip_grad_norm_(generator.parameters(), 1.0)
scaler.unscale_(first)  # expect: DG310 "`unscale_` is called a second time on Adam (1 scaled loss since its last step, and no `update()` between)"
nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
