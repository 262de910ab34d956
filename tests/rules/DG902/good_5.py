import torch
import torch.nn.functional as F

torch.manual_seed(0)
target = (2 * torch.randn(8, 2000)).bfloat16()
draft = (target.float() + 0.02 * torch.randn(8, 2000)).bfloat16().requires_grad_()
loss = F.kl_div(F.log_softmax(draft.float(), -1), F.softmax(target.float(), -1), reduction="batchmean")
loss.backward()
