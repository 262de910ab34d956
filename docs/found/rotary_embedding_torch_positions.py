import torch
from rotary_embedding_torch import RotaryEmbedding

torch.manual_seed(0)
query = torch.randn(1, 1, 4096, 32).bfloat16()
right = RotaryEmbedding(dim=32).rotate_queries_or_keys(query.float())
found = RotaryEmbedding(dim=32).rotate_queries_or_keys(query)
print("relative error", ((found - right).norm() / right.norm()).item())
