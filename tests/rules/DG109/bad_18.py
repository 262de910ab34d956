import torch

nodes = 120_000
edges = torch.randint(nodes, (2, 5000), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
key = (edges[0] * nodes + edges[1]).unique()  # expect: DG109 "`edges[0] * nodes`: 4258 of 5000 results are outside of -2147483648 to 2147483647 and wrap around"
source = torch.div(key, nodes, rounding_mode="floor")
print(source.long() % nodes)
