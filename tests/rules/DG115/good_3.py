import torch

loss = torch.sigmoid(torch.tensor(9.0))
logged = loss.bfloat16()
beta = torch.tensor(0.9999)
moment = torch.ones(3).half() * beta
