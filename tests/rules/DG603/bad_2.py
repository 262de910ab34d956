import torch
from torch import nn

clients = [nn.BatchNorm1d(2).state_dict() for _ in range(2)]
clients[1]["num_batches_tracked"] += 3
mean = {name: (clients[0][name] + clients[1][name]) / 2 for name in clients[0]}

server = nn.BatchNorm1d(2)
server.load_state_dict(mean)  # expect: DG603 "`load_state_dict` writes float32 into int64: the fractions of `num_batches_tracked` of BatchNorm1d are lost (1.5, ...)"
