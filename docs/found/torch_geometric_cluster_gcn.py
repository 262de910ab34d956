import torch
from torch_geometric.nn import ClusterGCNConv

layer, x, edges = ClusterGCNConv(16, 8), torch.randn(10, 16), torch.randint(10, (2, 40))
layer(x, edges)
layer.bfloat16()(x.bfloat16(), edges)
