from torch import nn

model = nn.BatchNorm1d(4).float().double()
